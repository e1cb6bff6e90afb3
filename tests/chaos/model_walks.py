"""Random walks of the model, recorded like traces of real queries."""

import random
from typing import Any, Final

from chaos.model import (
    Bounds,
    Breakage,
    Driver,
    Request,
    Rules,
    State,
    Steps,
    violated,
    without_what_is_over,
)
from chaos.traces import Event

_PARTITION: Final = ("in", 0)
_BOUNDS: Final = Bounds(tasks=4, fences=3, late=2)
_STEPS: Final = 400
# Weights of steps relative to an arriving answer; all other steps have the same weight as that.
_SELDOM: Final = {"starts": 0.02, "gives the task up": 0.1, "finds the group changed": 0.1}


class Walk:
    """One walk, from a seed; it ends if no step is possible, or something is wrong."""

    def __init__(self, seed: int, broken: Breakage = Breakage.NONE) -> None:
        self.events: list[Event] = []
        self.wrong: str | None = None
        self._chosen = random.Random(seed)
        self._rules = Rules(broken, _BOUNDS)
        self._sent: dict[Request, int] = {}
        drivers = Driver(self._rules.order[0]), Driver()
        slots = _BOUNDS.tasks
        state = State(drivers, (0,) * slots, (None,) * slots)
        for _ in range(_STEPS):
            following = self._step(state)
            if following is None or self.wrong is not None:
                break
            state = without_what_is_over(following)
            self.wrong = violated(state, self._rules)

    def _step(self, state: State) -> State | None:
        steps = Steps(state, self._rules)
        choices: list[tuple[float, str, Any, State]] = []
        for request in sorted(state.requests, key=str):
            waits = request.task >= 0 or request.driver >= 0
            choices.append((1 if waits else 0.3, "arrives", request, steps.arrives(request)))
            if waits and state.late < _BOUNDS.late:
                choices.append((0.3, "is lost", request, steps.gives_up(request)))
        for number in range(len(state.drivers)):
            for name, following in steps.of_driver(number):
                choices.append((_SELDOM.get(name, 1), name, number, following))
        if not choices:
            return None
        _, name, what, following = self._chosen.choices(choices, [one[0] for one in choices])[0]
        new = following.requests - state.requests
        if name == "arrives":
            self._arrives(state, what, following)
        elif name == "is lost":
            self._record(lost=self._sent.pop(what))
            new = frozenset()
        else:
            self._of_driver(name, what, state, following)
        for request in sorted(new, key=str):
            if request.kind != "EndTxn, abort":
                self._sent[request] = self._asks(request)
        return following

    def _record(self, **event: Any) -> int:
        self.events.append({"at": len(self.events) / 100, **event})
        return len(self.events) - 1

    def _asks(self, request: Request) -> int:
        event: Event = {"kind": request.kind, "process": 200 + request.slot}
        if request.kind == "OffsetCommit":
            event["process"] = 100 + request.driver
        else:
            event["id"] = f"t/{request.slot}"
        if request.kind not in {"OffsetCommit", "InitProducerId"}:
            event["producer"] = [request.slot, request.epoch]
        if request.kind in {"OffsetCommit", "TxnOffsetCommit"}:
            event["member"] = f"m{request.member}"
            event["offsets"] = [(*_PARTITION, request.offset)]
        return self._record(**event)

    def _arrives(self, state: State, request: Request, following: State) -> None:
        if request.kind == "EndTxn, abort":
            self._sent[request] = self._asks(request)
        elif request not in self._sent:
            return  # The answer was lost, so the request arrives unobserved.
        code = 0 if Steps(state, self._rules).accepted(request) is not None else 25
        event: Event = {"answer": self._sent.pop(request)}
        if request.kind in {"OffsetCommit", "TxnOffsetCommit"}:
            event["codes"] = [(*_PARTITION, code)]
        else:
            event["code"] = code
        if request.kind == "InitProducerId":
            event["producer"] = [request.slot, following.epochs[request.slot]]
        if request.rows and not code:
            event["rows"] = [(*_PARTITION, request.rows[0], request.rows[-1])]
        self._record(**event)

    def _of_driver(self, name: str, number: int, state: State, following: State) -> None:
        process = 100 + number
        member = f"m{following.drivers[number].member}"
        if name == "fences":
            asked = self._record(
                kind="ConsumerGroupHeartbeat",
                process=process,
                member=member,
                epoch=0,
                instance="spark-eos-0",
            )
            self._record(answer=asked, code=0)
        elif name == "ends open transactions":
            for slot, epoch in enumerate(following.epochs):
                if state.epochs[slot] != epoch:
                    asked = self._record(kind="InitProducerId", process=process, id=f"t/{slot}")
                    self._record(answer=asked, code=0, producer=[slot, epoch])
        elif name == "reads the offset":
            asked = self._record(kind="OffsetFetch", process=process, member=member)
            read = following.drivers[number].committed
            self._record(
                answer=asked, code=0, codes=[(*_PARTITION, 0)], offsets=[(*_PARTITION, read)]
            )
