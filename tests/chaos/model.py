"""The protocol as a small specification, and an explorer that visits every order of its steps.

Two drivers, three tasks and a broker share one source partition. A request may arrive late, its
answer may be lost, a task that Spark has given up may continue, and a second driver may start at
any time while the first driver continues. `explore` visits all orders of these steps, and stops at
the first state in which a record is lost or duplicated.

A `Breakage` omits one rule of the order: fence, read, write, commit, end.

`chaos.replay` checks the steps of real queries against the model.
"""

from collections import Counter, deque
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, NamedTuple

# Records 0 and 2 have a row; 1 is filtered. An explored transaction holds one row.
ROWS: Final = (0, 2)
BATCHES: Final = ((0, 2), (2, 3))
_END: Final = BATCHES[-1][1]
_ORDER: Final = ("fence", "end transactions", "read", "plan")


class Breakage(Enum):
    """An omitted rule; most have the name of the corresponding chaos mutation."""

    NONE = "none"
    NO_TAKEOVER = "no-takeover-at-start"
    ANSWER_IGNORED = "v6-answer-ignored"
    NOT_FLUSHED = "delivery-errors-ignored"
    READ_BEFORE_FENCING = "offsets-read-before-fencing"
    LINGERING_LEFT = "lingering-transactions-left, and offsets read before they end"
    RETRY_WRITES = "retries-not-deferred"
    PRODUCER_KEPT = "producer-kept-after-an-unclean-end"
    END_FIRST = "end-committed-before-the-rows"
    LATE_END_NOT_FENCED = "a lost answer to the end is not followed by fencing"


class Bounds(NamedTuple):
    """Limits on the number of tasks, each driver's fences, and requests that time out."""

    tasks: int = 2
    fences: int = 2
    late: int = 1


_BOUNDS: Final = Bounds()


class Transaction(NamedTuple):
    """An open transaction: its records, and the offset to which its commit moves the group."""

    rows: tuple[int, ...] = ()
    offset: int | None = None


class Request(NamedTuple):
    """A request on its way to the broker. ``task`` or ``driver``, or nobody, waits for it."""

    kind: str
    member: int = 0
    slot: int = 0
    epoch: int = 0
    offset: int = 0
    task: int = -1
    driver: int = -1
    rows: tuple[int, ...] = ()


class Task(NamedTuple):
    """A task's state: ``step`` is the request that it waits for, or how it ended.

    ``rows`` are its transaction's rows.
    """

    member: int
    slot: int
    epoch: int
    rows: tuple[int, ...]
    end: int
    step: str


class Driver(NamedTuple):
    """A driver's state: ``step`` is the next step; ``task`` is the task that it runs."""

    step: str = "off"
    batch: int = 0
    member: int = 0
    committed: int = 0
    task: int = -1
    fences: int = 0


class Rules(NamedTuple):
    """The constants of an exploration."""

    broken: Breakage = Breakage.NONE
    bounds: Bounds = _BOUNDS
    rows: tuple[int, ...] = ROWS
    rows_in_transaction: int | None = 1  # None for all rows of the task

    @property
    def order(self) -> tuple[str, ...]:
        """A driver's steps before it plans."""
        read_first = self.broken is Breakage.READ_BEFORE_FENCING
        return ("read", "fence", "end transactions", "plan") if read_first else _ORDER

    def after(self, step: str) -> str:
        """Return the step after a step."""
        return self.order[self.order.index(step) + 1]


class State(NamedTuple):
    """The state of drivers, tasks and broker."""

    drivers: tuple[Driver, ...]
    # By slot; a slot represents a transactional id.
    epochs: tuple[int, ...]
    open: tuple[Transaction | None, ...]
    tasks: tuple[Task, ...] = ()
    requests: frozenset[Request] = frozenset()
    member: int = 0
    committed: int = 0
    written: tuple[int, ...] = ()
    late: int = 0


class Violation(NamedTuple):
    """A violation, and the steps that led to it."""

    what: str
    steps: tuple[str, ...]


class Explored(NamedTuple):
    """The number of states, whether a run can finish, and the first violation."""

    states: int
    finished: bool
    violation: Violation | None


def explore(breakage: Breakage = Breakage.NONE, bounds: Bounds = _BOUNDS) -> Explored:
    """Visits every state within the bounds, nearest first, until a rule is violated."""
    rules = Rules(breakage, bounds)
    drivers = (Driver(rules.order[0]), Driver())
    first = State(drivers, (0,) * bounds.tasks, (None,) * bounds.tasks)
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    todo = deque([first])
    finished = False
    while todo:
        state = todo.popleft()
        finished = finished or state.committed == _END
        if (what := violated(state, rules)) is not None:
            return Explored(len(came_from), finished, Violation(what, _steps(came_from, state)))
        for name, reached in Steps(state, rules).all():
            following = without_what_is_over(reached)
            if following not in came_from:
                came_from[following] = (state, name)
                todo.append(following)
    return Explored(len(came_from), finished, None)


def violated(state: State, rules: Rules) -> str | None:
    """Describes what is wrong with the records or the group's offset."""
    written = Counter(state.written)
    for row in rules.rows:
        copies = written[row]
        if copies > 1:
            return f"record {row} is doubled"
        if row < state.committed and not copies:
            return f"record {row} is lost"
    if any(driver.step == "gap" for driver in state.drivers):
        return "the group's offset is behind the batch"
    return None


def without_what_is_over(state: State) -> State:
    """The same state without irrelevant details, so that there are fewer states to visit."""
    requests = frozenset(
        one
        for one in state.requests
        if one.task >= 0
        or one.driver >= 0
        or (one.member == state.member if one.kind == "OffsetCommit" else _counts(one, state))
    )
    drivers = [Driver("stopped") if one.step == "stopped" else one for one in state.drivers]
    running = {driver.task for driver in drivers}
    tasks = tuple(
        task._replace(member=0, slot=0, epoch=0, rows=(), end=0, step="over")
        if task.step in {"done", "lost", "refused"} and number not in running
        else task
        for number, task in enumerate(state.tasks)
    )
    return state._replace(drivers=tuple(drivers), tasks=tasks, requests=requests)


def _counts(request: Request, state: State) -> bool:
    """Return True if a task's late request may still be accepted."""
    if request.kind == "InitProducerId":
        return True
    known = request.kind != "TxnOffsetCommit" or request.member == state.member
    return known and request.epoch == state.epochs[request.slot]


def _steps(came_from: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    names = []
    while (before := came_from[state]) is not None:
        state, name = before
        names.append(name)
    return tuple(reversed(names))


def _replaced(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


class Steps:
    """The possible steps in a state."""

    def __init__(self, state: State, rules: Rules) -> None:
        self._state = state
        self._rules = rules
        self._broken = rules.broken

    def all(self) -> Iterator[tuple[str, State]]:
        state = self._state
        for request in state.requests:
            yield f"{request.kind} arrives", self.arrives(request)
            if (request.task >= 0 or request.driver >= 0) and state.late < self._rules.bounds.late:
                yield f"no answer to {request.kind}", self.gives_up(request)
        for number in range(len(state.drivers)):
            for name, following in self.of_driver(number):
                yield f"driver {number}: {name}", following

    # The broker -------------------------------------------------------------------------------

    def accepted(self, request: Request) -> State | None:
        """The effect of a request that arrives; None if the broker refuses it."""
        state = self._state._replace(requests=self._state.requests - {request})
        if request.kind == "OffsetCommit":
            known = request.member == state.member
            return state._replace(committed=request.offset) if known else None
        if request.kind == "InitProducerId":
            return init_producer(state, request.slot)
        if request.epoch != state.epochs[request.slot]:
            return None
        return _in_transaction(state, request, state.open[request.slot])

    def arrives(self, request: Request) -> State:
        """The broker's effect, and the next step of whoever waits for the answer."""
        following = self.accepted(request)
        accepted = following is not None
        state = following or self._state._replace(requests=self._state.requests - {request})
        if request.task >= 0:
            return self._task_hears(state, request, accepted=accepted)
        if request.driver >= 0:
            step = "next batch" if accepted else "stopped"
            return with_driver(state, request.driver, step=step)
        return state

    def gives_up(self, request: Request) -> State:
        state = self._state
        orphan = request._replace(task=-1, driver=-1)
        requests = state.requests - {request} | {orphan}
        state = state._replace(requests=requests, late=state.late + 1)
        if request.task >= 0:
            return _aborts(state, request.task, "lost")
        again = self._broken is not Breakage.LATE_END_NOT_FENCED
        return with_driver(
            state, request.driver, step=self._rules.order[0] if again else "next batch"
        )

    # A task -----------------------------------------------------------------------------------

    def _task_hears(self, state: State, request: Request, *, accepted: bool) -> State:
        number, task = request.task, state.tasks[request.task]
        ignored = self._broken is Breakage.ANSWER_IGNORED and request.kind == "TxnOffsetCommit"
        if not accepted and not ignored:
            return _aborts(state, number, "refused")
        match request.kind:
            case "InitProducerId":
                state = _with_task(state, number, epoch=state.epochs[task.slot])
                return self._asks(state, number, "AddPartitionsToTxn")
            case "AddPartitionsToTxn":
                state = self._asks(state, number, "Produce")
                if self._broken is Breakage.NOT_FLUSHED:
                    # The record is on its way, and nobody waits for the answer.
                    (produce,) = (r for r in state.requests if r.task == number)
                    orphan = produce._replace(task=-1)
                    state = state._replace(requests=state.requests - {produce} | {orphan})
                    state = self._asks(state, number, "TxnOffsetCommit")
                return state
            case "Produce":
                return self._asks(state, number, "TxnOffsetCommit")
            case "TxnOffsetCommit":
                return self._asks(state, number, "EndTxn")
            case _:
                return self._begins(state, number, task.rows[-1] + 1)

    def _asks(self, state: State, number: int, kind: str) -> State:
        """The task sends a request and waits for the answer."""
        task = state.tasks[number]
        offset = task.rows[-1] + 1 if kind == "TxnOffsetCommit" else 0
        rows = task.rows if kind == "Produce" else ()
        request = Request(kind, task.member, task.slot, task.epoch, offset, number, rows=rows)
        return _with_task(_sends(state, request), number, step=kind)

    def _begins(self, state: State, number: int, row: int, *, asks: bool = True) -> State:
        """The task continues with its next rows, or is done if there are none."""
        rows = self.rows(row, state.tasks[number].end)[: self._rules.rows_in_transaction]
        if not rows:
            return _with_task(state, number, step="done")
        state = _with_task(state, number, rows=rows)
        return self._asks(state, number, "AddPartitionsToTxn") if asks else state

    # A driver ---------------------------------------------------------------------------------

    def of_driver(self, number: int) -> Iterator[tuple[str, State]]:
        """A driver's possible next steps."""
        state, driver = self._state, self._state.drivers[number]
        match driver.step:
            case "off":
                yield from self._starts(number)
            case "fence":
                yield from self._fences(number, driver)
            case "end transactions":
                yield "ends open transactions", self._ends_transactions(number)
            case "read":
                # Brokers keep back an offset that an open transaction may move.
                stable = all(one is None or one.offset is None for one in state.open)
                if stable or self._broken is Breakage.LINGERING_LEFT:
                    found, after = state.committed, self._rules.after("read")
                    read = with_driver(state, number, committed=found, step=after)
                    yield "reads the offset", read
            case "plan":
                yield from self._plans(number, driver)
            case "write":
                yield from self._waits(number, driver)
            case "end" | "next batch":
                yield from self._goes_on(number, driver)

    def _goes_on(self, number: int, driver: Driver) -> Iterator[tuple[str, State]]:
        state, end = self._state, BATCHES[driver.batch][1]
        if driver.step == "end" and driver.committed < end:
            yield "commits the end", self.commits(number, end)
        elif driver.batch + 1 < len(BATCHES):
            following, known = driver.batch + 1, max(driver.committed, end)
            changes = {"batch": following, "committed": known, "step": "plan"}
            yield "goes on", with_driver(state, number, **changes)

    def commits(self, number: int, end: int) -> State:
        """A driver commits an offset outside transactions."""
        member = self._state.drivers[number].member
        request = Request("OffsetCommit", member, offset=end, driver=number)
        return _sends(with_driver(self._state, number, step="wait"), request)

    def _starts(self, number: int) -> Iterator[tuple[str, State]]:
        # The checkpoint may be at any batch up to the other driver's current one.
        for batch in range(max(driver.batch for driver in self._state.drivers) + 1):
            step = self._rules.order[0]
            yield "starts", with_driver(self._state, number, step=step, batch=batch)

    def _fences(self, number: int, driver: Driver) -> Iterator[tuple[str, State]]:
        state = self._state
        if driver.fences == self._rules.bounds.fences:
            return
        # A driver may take over another's member only at its start.
        if driver.member and driver.member != state.member:
            yield "is fenced", with_driver(state, number, step="stopped")
            return
        member = state.member + 1
        if self._broken is Breakage.NO_TAKEOVER and state.member:
            member = state.member
        changes = {
            "member": member,
            "fences": driver.fences + 1,
            "step": self._rules.after("fence"),
        }
        yield "fences", with_driver(state._replace(member=member), number, **changes)

    def _ends_transactions(self, number: int) -> State:
        state = self._state
        if self._broken is not Breakage.LINGERING_LEFT:
            for slot, opened in enumerate(state.open):
                if opened is not None:
                    state = init_producer(state, slot)
        return with_driver(state, number, step=self._rules.after("end transactions"))

    def _plans(self, number: int, driver: Driver) -> Iterator[tuple[str, State]]:
        state = self._state
        start, end = BATCHES[driver.batch]
        yield "finds the group changed", with_driver(state, number, step=self._rules.order[0])
        if driver.committed < start:
            yield "finds a gap", with_driver(state, number, step="gap")
            return
        if self._broken is Breakage.END_FIRST and driver.committed < end:
            early = Request("OffsetCommit", driver.member, offset=end)
            state = _sends(state, early)
        yield from self._starts_task(state, number, driver.committed)

    def _starts_task(
        self, state: State, number: int, committed: int
    ) -> Iterator[tuple[str, State]]:
        driver = state.drivers[number]
        end = BATCHES[driver.batch][1]
        if not self.rows(committed, end):
            yield "has nothing to write", with_driver(state, number, step="end")
            return
        if len(state.tasks) == self._rules.bounds.tasks:
            return
        task = len(state.tasks)
        starting = Steps(with_driver(state, number, step="write", task=task), self._rules)
        new = Task(driver.member, task, 0, (), end, "")
        started = starting.starts_task(new, committed, asks=True)
        yield "starts a task in a new worker", started
        if driver.task < 0:
            return
        # The previous task's worker takes this task, with its producer if that task ended cleanly.
        before = state.tasks[driver.task]
        if before.step in {"done", "lost", "refused"}:
            reused = new._replace(slot=before.slot, epoch=before.epoch)
            kept = before.step == "done" or self._broken is Breakage.PRODUCER_KEPT
            started = starting.starts_task(reused, committed, asks=not kept)
            yield "starts a task in the worker", started

    def rows(self, start: int, end: int) -> tuple[int, ...]:
        """The records between two offsets that have a row."""
        return tuple(row for row in self._rules.rows if start <= row < end)

    def starts_task(self, new: Task, first: int, *, asks: bool) -> State:
        """A task begins at a record, with an existing or a new producer."""
        number = len(self._state.tasks)
        state = self._state._replace(tasks=(*self._state.tasks, new))
        if not asks:
            return self._begins(state, number, first)
        return self._asks(self._begins(state, number, first, asks=False), number, "InitProducerId")

    def _waits(self, number: int, driver: Driver) -> Iterator[tuple[str, State]]:
        state = self._state
        task = state.tasks[driver.task]
        if task.step == "done":
            known = task.rows[-1] + 1
            yield "hears of success", with_driver(state, number, step="end", committed=known)
            return
        # The task has failed, or Spark gives it up while it continues.
        first = self._rules.order[0]
        yield "gives the task up", with_driver(state, number, step=first)
        if self._broken is Breakage.RETRY_WRITES:
            yield from self._starts_task(state, number, driver.committed)


def _in_transaction(state: State, request: Request, opened: Transaction | None) -> State | None:
    """The effect of a request with the producer's current epoch; None if it is refused."""
    slot = request.slot
    if opened is None:
        adds = request.kind == "AddPartitionsToTxn"
        return _with_open(state, slot, Transaction()) if adds else None
    if request.kind == "TxnOffsetCommit" and request.member != state.member:
        return None
    following: Transaction | None = opened
    match request.kind:
        case "Produce":
            following = opened._replace(rows=(*opened.rows, *request.rows))
        case "TxnOffsetCommit":
            following = opened._replace(offset=request.offset)
        case "EndTxn":
            following = None
            state = state._replace(
                written=tuple(sorted((*state.written, *opened.rows))),
                committed=state.committed if opened.offset is None else opened.offset,
            )
        case "EndTxn, abort":
            following = None
    return _with_open(state, slot, following)


def init_producer(state: State, slot: int) -> State:
    epochs = _replaced(state.epochs, slot, state.epochs[slot] + 1)
    return _with_open(state._replace(epochs=epochs), slot, None)


def _with_open(state: State, slot: int, transaction: Transaction | None) -> State:
    return state._replace(open=_replaced(state.open, slot, transaction))


def with_driver(state: State, number: int, **changes: object) -> State:
    changed = state.drivers[number]._replace(**changes)  # type: ignore[arg-type]
    return state._replace(drivers=_replaced(state.drivers, number, changed))


def _with_task(state: State, number: int, **changes: object) -> State:
    changed = state.tasks[number]._replace(**changes)  # type: ignore[arg-type]
    return state._replace(tasks=_replaced(state.tasks, number, changed))


def _sends(state: State, request: Request) -> State:
    return state._replace(requests=state.requests | {request})


def _aborts(state: State, number: int, step: str) -> State:
    """The task ends without having committed; nobody waits for the answer to the abort."""
    task = state.tasks[number]
    abort = Request("EndTxn, abort", slot=task.slot, epoch=task.epoch)
    return _with_task(_sends(state, abort), number, step=step)
