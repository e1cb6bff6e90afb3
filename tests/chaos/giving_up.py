"""Of two drivers of one group, one gives up."""

import subprocess
import time
from typing import Final

from chaos.invariants import Rule, ViolationError
from chaos.stage import Stage, TrialError

_BOTH_WRITE: Final = 3


def await_one_to_give_up(stage: Stage, other: "subprocess.Popen[bytes]", end: float) -> None:
    counts: list[tuple[int, int]] = []
    while other.poll() is None and stage.exit_status() is None:
        time.sleep(0.02)
        both = stage.reports(), stage.reports_of_another()
        # Whoever is fenced may have been in a batch then, and have reported it late; each may
        # have taken the other over once.
        if both[1] and (not counts or min(a - b for a, b in zip(both, counts[-1], strict=True))):
            counts.append(both)
        if len(counts) > _BOTH_WRITE:
            seen = f"both have written {_BOTH_WRITE} times beside each other"
            raise ViolationError(Rule.ONE_RUN, seen)
        if time.monotonic() > end:
            raise TrialError("of two drivers of one group neither has given up")
