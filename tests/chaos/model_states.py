"""All states in which `chaos.model` may be, given what has been observed so far."""

from collections.abc import Callable, Iterable, Iterator

from chaos.model import Driver, Request, Rules, State, Steps, violated, without_what_is_over


class DisallowedError(Exception):
    """A step that no possible state of the model allows."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(f"{step}: {why}")
        self.step = step


class ModelStates:
    """The initial state, without drivers and producers."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.states = {State((), (), ())}
        self.steps = 0  # number of steps so far

    @property
    def one(self) -> State:
        """One of the states: all have the same drivers, slots and tasks."""
        return next(iter(self.states))

    def go(self, step: str, why: str, take: Callable[[State], Iterable[State]]) -> None:
        """Takes a step from each state in which it is allowed.

        Raises:
            DisallowedError: No state allows it.
        """
        found = [following for state in self.states for following in take(state)]
        wrong = [violated(following, self.rules) for following in found]
        sound = {_tidy(one) for one, what in zip(found, wrong, strict=True) if what is None}
        if not sound:
            raise DisallowedError(step, next(filter(None, wrong), why))
        self.states = sound
        self.steps += 1

    def change(self, change: Callable[[State], State]) -> None:
        """Applies a change that is not a step and is possible in each state."""
        self.states = {_tidy(change(state)) for state in self.states}

    def settle(self, unseen: Callable[[State], Iterable[State]]) -> None:
        """Adds states that are reached by possible unobserved events."""
        todo = list(self.states)
        while todo:
            for following in map(_tidy, unseen(todo.pop())):
                if following not in self.states:
                    self.states.add(following)
                    todo.append(following)

    def of(self, state: State) -> Steps:
        """The steps from a state."""
        return Steps(state, self.rules)

    def named(self, state: State, driver: int, name: str) -> Iterator[State]:
        """The result of a driver's step, if it is possible."""
        return (found for step, found in self.of(state).of_driver(driver) if step == name)

    def add_driver(self) -> int:
        """A driver that has to fence first."""
        number = len(self.one.drivers)
        self.change(lambda state: state._replace(drivers=(*state.drivers, Driver("fence"))))
        return number

    def add_slot(self, epoch: int) -> int:
        """A producer with an epoch and without a transaction."""
        number = len(self.one.open)
        self.change(
            lambda state: state._replace(epochs=(*state.epochs, epoch), open=(*state.open, None))
        )
        return number


def _tidy(state: State) -> State:
    # An abort is under way only if it was observed.
    requests = frozenset(one for one in state.requests if one.kind != "EndTxn, abort")
    return without_what_is_over(state._replace(requests=requests, late=0))


def pending(state: State, kind: str, whose: int) -> Request | None:
    """A request for which a task or a driver waits."""
    for one in state.requests:
        if one.kind == kind and whose == (one.driver if kind == "OffsetCommit" else one.task):
            return one
    return None
