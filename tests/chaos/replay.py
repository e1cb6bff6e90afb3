"""Replays queries' requests to brokers, and the answers, through `chaos.model` step by step.

Each source partition is replayed separately. Its offsets are split wherever a transaction's
records, a fetched offset or a committed offset begins or ends; each piece is a record of the model.
A run is a driver, a producer's epoch a slot, and a transaction a task. While a request is
unanswered, the model follows both possibilities until later events show which one occurred.

Limits: direct delivery only. Only requests to brokers are visible: not batches that commit nothing
outside transactions, Spark's decisions, or how a worker ends. A broker may refuse steps that the
model accepts, since it has more reasons to, but must not accept steps that the model refuses. A
broker may also abort transactions as old as the transaction timeout.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from chaos.model import Bounds, Request, Rules, State, Task, init_producer, with_driver
from chaos.model import Transaction as OpenTransaction
from chaos.model_states import DisallowedError, ModelStates, pending
from chaos.traces import Event, Transaction, transactions
from spark_eos._kafka.groups import RENEWAL_INSTANCE
from spark_eos._kafka.topic_partition import TopicPartition

# Seconds by which a transaction's age may differ between brokers and proxy.
_SLACK: Final = 1.0
_EPOCH: Final = 1  # epoch of each slot once its producer is initialized
_NOBODY: Final = -2


@dataclass
class Replayed:
    partitions: int = 0  # number of source partitions
    steps: int = 0  # total number of steps
    # The first disallowed step of each partition, and all of them as texts.
    disallowed: dict[TopicPartition, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def replay(
    events: list[Event], transaction_timeout_ms: int, *, several_nodes: bool = False
) -> Replayed:
    """Replays all source partitions for which transactions have records or offsets."""
    of, result = transactions(events), Replayed()
    concerned = {partition for one in of.values() for partition in (*one.offsets, *one.rows)}
    for partition in sorted(concerned):
        replayed = _Replay(
            events, of, partition, transaction_timeout_ms / 1000, several_nodes=several_nodes
        )
        try:
            replayed.run()
        except DisallowedError as error:
            result.disallowed[partition] = error.step
            result.problems.append(f"{partition}: {error}")
        result.steps += replayed.steps
        result.partitions += 1
    return result


class _Pieces:
    """A partition's offsets as the model counts them."""

    def __init__(
        self, events: list[Event], found: Iterable[Transaction], partition: TopicPartition
    ) -> None:
        self._partition = partition
        cuts = {0}
        for event in events:
            cuts.add(max(self.value(event, "offsets") or 0, 0))
        for one in found:
            first, last = one.rows.get(partition, (0, -1))
            cuts |= {first, last + 1}
        self._cuts = sorted(cuts)
        # Pieces that certainly have rows: the first and last of each transaction.
        rows = set()
        for one in found:
            if partition in one.rows:
                first, last = one.rows[partition]
                rows |= {self.at(first), self.at(last + 1) - 1}
            if partition in one.offsets:
                rows.add(self.at(one.offsets[partition][1]) - 1)
        self.rows = tuple(sorted(rows))

    def value(self, event: Event, key: str) -> int | None:
        """An event's contents for the partition."""
        found = (value for t, p, value in event.get(key, ()) if (t, p) == self._partition)
        return next(found, None)

    def at(self, offset: int) -> int:
        """The piece that begins at an offset."""
        return bisect_left(self._cuts, max(offset, 0))


class _Replay:
    """Replays one partition."""

    def __init__(
        self,
        events: list[Event],
        of: dict[int, Transaction],
        partition: TopicPartition,
        timeout: float,
        *,
        several_nodes: bool,
    ) -> None:
        self._events, self._of, self._partition = events, of, partition
        self._pieces = _Pieces(events, of.values(), partition)
        bounds = Bounds(tasks=len(events), fences=len(events))
        rules = Rules(bounds=bounds, rows=self._pieces.rows, rows_in_transaction=None)
        self._model = ModelStates(rules)
        self._timeout, self._now = timeout, 0.0
        self._several_nodes = several_nodes
        # Each process's latest run; runs that have left; runs that have read; and since when a run
        # has fenced without having read.
        self._runs: dict[int, int] = {}
        self._left: set[int] = set()
        self._has_read: set[int] = set()
        self._fencing: dict[int, float] = {}
        self._newest_run = _NOBODY
        self._renews = False
        # Each member's run, process, and number in the model; `_member` is the latest number.
        self._members: dict[str, tuple[int, int, int]] = {}
        self._member = 0
        self._slots: dict[tuple[str, tuple[int, int]], int] = {}
        self._newest: dict[str, tuple[int, int]] = {}
        self._opened: dict[int, float] = {}
        self._holders: dict[int, Transaction] = {}
        self._tasks: dict[Transaction, int] = {}
        self._last: dict[tuple[str, int], Transaction] = {}
        self._asked: set[tuple[Transaction, str]] = set()  # requests that were sent before
        self._repeats: set[int] = set()  # numbers of requests that were sent again
        self._unacknowledged: dict[Transaction, set[int]] = defaultdict(set)
        # Requests that may still arrive: the kind, and the task or run.
        self._under_way: dict[int, tuple[str, int]] = {}
        # Ids whose producers may be fenced, by a pending request or one that was never answered.
        self._fences: set[str] = set()
        self._unsure: set[str] = set()

    @property
    def steps(self) -> int:
        return self._model.steps

    def run(self) -> None:
        """Takes all steps in order."""
        for number, event in enumerate(self._events):
            self._now = event["at"]
            self._model.settle(self._unseen)
            if "kind" in event:
                self._sent(number, event)
            elif "answer" in event:
                self._answered(event["answer"], self._events[event["answer"]], event)
            else:
                self._lost(event["lost"], self._events[event["lost"]])

    def _unseen(self, state: State) -> Iterator[State]:
        for kind, whose in self._under_way.values():
            request = pending(state, kind, whose)
            if request is not None and self._model.of(state).accepted(request) is not None:
                yield self._model.of(state).arrives(request)
        for (id_, _), slot in self._slots.items():
            old = self._now - self._opened.get(slot, self._now) > self._timeout - _SLACK
            if state.open[slot] is not None and (old or id_ in self._fences | self._unsure):
                yield init_producer(state, slot)

    # Events -------------------------------------------------------------------------------------

    def _sent(self, number: int, event: Event) -> None:
        one = self._of.get(number)
        if event["kind"] == "ConsumerGroupHeartbeat":
            run = self._members.get(event["member"], (-1,))[0]
            if event["epoch"] == -1 and run == self._runs.get(event["process"]):
                self._left.add(run)
        elif event["kind"] == "InitProducerId":
            self._fences.add(event["id"])
        elif event["kind"] == "OffsetCommit":
            if (offset := self._pieces.value(event, "offsets")) is not None:
                self._commits(number, event, self._pieces.at(offset))
        elif one is not None and self._partition in one.offsets:
            self._asks(number, event, one)
        elif one is not None and event["kind"] == "EndTxn" and self._partition in one.rows:
            raise DisallowedError("EndTxn", f"{one} has records, and no offsets of them")

    def _answered(self, number: int, asked: Event, answer: Event) -> None:
        one = self._of.get(number)
        code = self._pieces.value(answer, "codes") if "codes" in answer else answer["code"]
        match asked["kind"]:
            case "ConsumerGroupHeartbeat" if asked["epoch"] == 0 and not code:
                self._joined(asked["process"], asked["member"])
                self._renews = asked["instance"] == RENEWAL_INSTANCE
            # The epoch may be raised even by an answer that asks for a retry.
            case "InitProducerId" if not code:
                self._initialized(asked["id"], answer["producer"])
            case "OffsetFetch" if code == 0:
                offset = self._pieces.value(answer, "offsets") or 0
                self._reads(asked["process"], asked["member"], self._pieces.at(offset))
            case "OffsetCommit" if code is not None:
                self._committed(number, asked, accepted=not code)
            case kind if one in self._tasks and code is not None:
                self._heard(number, kind, one, accepted=not code)
            case kind if one is not None and self._partition in one.rows and not code:
                self._without_offsets(kind, one)

    def _lost(self, number: int, asked: Event) -> None:
        if asked["kind"] == "InitProducerId":
            self._unsure.add(asked["id"])
        elif asked["kind"] == "Produce":
            self._unacknowledged[self._of[number]].discard(number)

    def _without_offsets(self, kind: str, one: Transaction) -> None:
        """Handles a transaction whose offsets are never sent: none of its records may count."""
        if kind not in {"AddPartitionsToTxn", "EndTxn, abort"}:
            return
        opened = None if kind == "EndTxn, abort" else OpenTransaction()
        slot = self._slot(one)
        self._opens(one)
        self._model.change(
            lambda state: state._replace(open=(*state.open[:slot], opened, *state.open[slot + 1 :]))
        )

    def _slot(self, one: Transaction) -> int:
        key = one.id, one.producer
        if key not in self._slots:
            fenced = self._newest.get(one.id, one.producer) != one.producer
            self._slots[key] = self._model.add_slot(_EPOCH + fenced)
        return self._slots[key]

    def _opens(self, one: Transaction) -> None:
        if one is not self._holders.get(self._slot(one)):
            self._holders[self._slot(one)] = one
            self._opened[self._slot(one)] = self._now

    def _joined(self, process: int, member: str) -> None:
        run = self._runs.get(process, -1)
        if run in self._fencing and run == self._newest_run and run not in self._left:
            # Another member of the same takeover.
            self._members[member] = run, process, self._member
            return
        # A run learns only from the offsets that a newer run has come and gone.
        alone = self._newest_run in self._left
        if run not in self._has_read or run in self._left or (run != self._newest_run and alone):
            run = self._runs[process] = self._model.add_driver()
        self._newest_run = run
        self._member += 1
        self._members[member] = run, process, self._member
        self._fencing[run] = self._now
        why = f"a newer run has fenced that of process {process}"
        self._model.go("fences", why, lambda state: self._fences_again(state, run))

    def _fences_again(self, state: State, run: int) -> Iterator[State]:
        # From any step, the run may have given a task up, or found the group changed.
        request = pending(state, "OffsetCommit", run)
        if request is not None:
            state = self._model.of(state).gives_up(request)
        yield from self._model.named(with_driver(state, run, step="fence"), run, "fences")

    def _reads(self, process: int, member: str, offset: int) -> None:
        run = self._runs.get(process)
        if run is None or self._members.get(member, (-1,))[0] != run:
            raise DisallowedError(
                "reads the offset", f"process {process} has not fenced: {member} is not its own"
            )
        if run not in self._fencing:
            return  # This read decides nothing.
        since = self._fencing.pop(run)
        self._has_read.add(run)
        self._model.go(
            "ends open transactions",
            "one that was open before fencing still is",
            lambda state: self._has_ended(state, run, since),
        )
        known = sorted(state.committed for state in self._model.states)
        self._model.go(
            "reads the offset",
            f"it is piece {offset}, the model has {known}, or a transaction that may move it",
            lambda state: (
                found
                for found in self._model.named(state, run, "reads the offset")
                if state.committed == offset
            ),
        )

    def _has_ended(self, state: State, run: int, since: float) -> Iterator[State]:
        # With several nodes, the node that knows a transaction may be away. In that case, the
        # transaction must not have offsets, and gets none later.
        left = any(
            transaction is not None
            and self._opened.get(slot, self._now) < since
            and not (self._several_nodes and transaction.offset is None)
            for slot, transaction in enumerate(state.open)
        )
        # A run that only renews offsets waits for the transaction to end.
        if state.drivers[run].step == "end transactions" and (self._renews or not left):
            yield with_driver(state, run, step="read")

    def _slots_of(self, transactional_id: str) -> list[int]:
        return [slot for (id_, _), slot in self._slots.items() if id_ == transactional_id]

    def _initialized(self, transactional_id: str, producer: list[int]) -> None:
        self._newest[transactional_id] = producer[0], producer[1]
        slots = set(self._slots_of(transactional_id))
        self._fences.discard(transactional_id)
        for other, (kind, task) in list(self._under_way.items()):
            if kind != "OffsetCommit" and self._slot_of(task) in slots:
                del self._under_way[other]
        for slot in slots:
            self._model.go("InitProducerId", "", partial(_initialized, slot))

    def _slot_of(self, task: int) -> int:
        return self._slot(next(one for one, number in self._tasks.items() if number == task))

    # A driver's commits -------------------------------------------------------------------------

    def _commits(self, number: int, event: Event, offset: int) -> None:
        run, process, member = self._members.get(event["member"], (-1, -1, 0))
        if process != event["process"]:
            raise DisallowedError("commits the end", f"{event['member']} is not its own")
        self._model.go(
            "commits the end",
            f"records before piece {offset} are not known to be written",
            lambda state: self._commits_end(state, run, member, offset),
        )
        self._under_way[number] = "OffsetCommit", run

    def _commits_end(self, state: State, run: int, member: int, offset: int) -> Iterator[State]:
        if state.drivers[run].member != member or state.drivers[run].step == "wait":
            yield state  # The run has fenced since, or repeats the request.
            return
        for ready in self._planned(state, run):
            known = ready.drivers[run].committed
            if offset <= known:
                yield state  # Renews the committed offset.
            elif not self._model.of(state).rows(known, offset):
                yield self._model.of(ready).commits(run, offset)

    def _committed(self, number: int, asked: Event, *, accepted: bool) -> None:
        _, run = self._under_way.pop(number)
        member = self._members[asked["member"]][2]
        offset = self._pieces.at(self._pieces.value(asked, "offsets") or 0)

        def take(state: State) -> Iterator[State]:
            request = pending(state, "OffsetCommit", run)
            if not accepted:
                left = frozenset(one for one in state.requests if one is not request)
                ended = state if request is None else with_driver(state, run, step="end")
                yield ended._replace(requests=left)
            elif request is not None:
                if self._model.of(state).accepted(request) is not None:
                    yield self._model.of(state).arrives(request)
            elif member == state.member and offset == state.committed:
                yield state

        self._model.go("OffsetCommit", f"piece {offset}, accepted={accepted}", take)

    def _planned(self, state: State, run: int) -> Iterator[State]:
        """The states in which a driver knows its committed rows and continues to plan."""
        step = state.drivers[run].step
        if step == "write":
            for heard in self._model.named(state, run, "hears of success"):
                yield with_driver(heard, run, step="plan")
        elif step in {"plan", "end", "next batch"}:
            yield with_driver(state, run, step="plan")

    # A task's transaction -----------------------------------------------------------------------

    def _asks(self, number: int, event: Event, one: Transaction) -> None:
        kind = event["kind"]
        if one not in self._tasks:
            self._begins(one)
        if kind == "Produce":
            self._unacknowledged[one].add(number)
            return
        if kind == "EndTxn, abort" or (
            kind == "TxnOffsetCommit" and self._pieces.value(event, "offsets") is None
        ):
            return
        task, offset = self._tasks[one], self._pieces.at(one.offsets[self._partition][1])
        if kind == "TxnOffsetCommit" and self._unacknowledged[one]:
            raise DisallowedError(kind, f"{one} has records that are not acknowledged")

        if (one, kind) in self._asked:
            self._repeats.add(number)
        self._asked.add((one, kind))

        def take(state: State) -> Iterator[State]:
            request = pending(state, kind, task)
            if request is None:
                if number in self._repeats:  # The first request may have arrived.
                    yield state
            elif kind != "TxnOffsetCommit" or request.offset == offset:
                yield state

        self._model.go(kind, f"{one} has not come to it", take)
        self._model.steps -= 1  # The step counts when the request arrives.
        self._under_way[number] = kind, task

    def _begins(self, one: Transaction) -> None:
        member, end = one.offsets[self._partition]
        known = self._members.get(member)
        key = one.id, one.producer
        new = key not in self._slots
        step = f"starts a task in {'a new' if new else 'the'} worker"
        if one.after is not None or known is None:
            why = f"after {one.after} its producer must be fenced"
            raise DisallowedError(step, why if known else f"{member} has not joined")
        run, _, number = known
        slot = self._slot(one)
        new_task = Task(number, slot, _EPOCH, (), self._pieces.at(end), "")
        self._tasks[one] = len(self._model.one.tasks)
        before, self._last[member, slot] = self._last.get((member, slot)), one

        def take(state: State) -> Iterator[State]:
            at_plan = state.drivers[run].member == number
            for ready in self._planned(state, run) if at_plan else ():
                first = ready.drivers[run].committed
                changed = with_driver(ready, run, step="write", task=self._tasks[one])
                yield from self._started(changed, new_task, first, one)
                return
            # The task continues, maybe after the driver has given it up, or begins late.
            if before is not None and before.clean:
                first = self._pieces.at(before.offsets[self._partition][1])
                if state.drivers[run].task == self._tasks[before]:
                    state = with_driver(state, run, task=self._tasks[one])
                yield from self._started(state, new_task, first, one)
            elif not at_plan:
                yield from self._started(state, new_task, None, one)

        known_offsets = sorted({state.drivers[run].committed for state in self._model.states})
        steps = sorted({state.drivers[run].step for state in self._model.states})
        why = (
            f"{one} with pieces {self._rows(one)} to {self._pieces.at(end)}, the run's offset is "
            f"{known_offsets}, and its step {steps}"
        )
        self._model.go(step, why, take)

    def _rows(self, one: Transaction) -> tuple[int, ...] | None:
        if self._partition not in one.rows or "Produce" in one.lost:
            return None  # Brokers don't always return the offset of a batch that was sent twice.
        first, last = one.rows[self._partition]
        low, high = self._pieces.at(first), self._pieces.at(last + 1)
        return tuple(row for row in self._model.rules.rows if low <= row < high)

    def _started(
        self, state: State, task: Task, first: int | None, one: Transaction
    ) -> Iterator[State]:
        """The state with the task, if the task has the transaction's rows."""
        rows = self._rows(one)
        if first is None:
            first = rows[0] if rows else task.end - 1
        expected = self._model.of(state).rows(first, task.end)
        if not expected or (rows is not None and rows != expected):
            return
        yield self._model.of(state).starts_task(task, first, asks=False)

    def _heard(self, number: int, kind: str, one: Transaction, *, accepted: bool) -> None:
        self._under_way.pop(number, None)
        task = self._tasks[one]
        if kind == "Produce":
            waiting = self._unacknowledged[one]
            waiting.discard(number)
            if waiting or not accepted:
                return
        if kind == "AddPartitionsToTxn" and accepted:
            self._opens(one)

        def take(state: State) -> Iterator[State]:
            if kind == "EndTxn, abort":
                abort = Request(kind, slot=self._slot(one), epoch=_EPOCH)
                yield self._model.of(state).accepted(abort) or state
                return
            request = pending(state, kind, task)
            if request is None:
                # The request has arrived before, or only adds partitions to an open transaction. If
                # a process was frozen in the meantime, its repeated request may be refused.
                if accepted or one.lost or number in self._repeats or kind == "AddPartitionsToTxn":
                    yield state
            elif not accepted:
                yield state
            elif self._model.of(state).accepted(request) is not None:
                yield self._model.of(state).arrives(request)

        why = f"{one}: the broker answers accepted={accepted}, which it must not"
        self._model.go(kind, why, take)


def _initialized(slot: int, state: State) -> Iterator[State]:
    yield init_producer(state, slot)
