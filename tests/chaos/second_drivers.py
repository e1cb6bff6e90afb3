"""Starts a second driver for a query's group; one must give up, even if the first was frozen."""

import signal
import time
from typing import Final

from chaos import processes
from chaos.invariants import Rule, ViolationError
from chaos.processes import Driver
from chaos.schedule import Fault
from chaos.stage import Stage, TrialError, wait_for

_PATIENCE: Final = 240.0
_BOTH_WRITE: Final = 3
_FENCED: Final = "FencedByNewerRunError"
# Errors with which a driver may end if another driver continues with its checkpoint: its own, or
# Spark's, if Spark finds that a log or a copy has changed.
_CHECKPOINT_IN_USE: Final[tuple[str, ...]] = (
    _FENCED,
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Multiple streaming queries are concurrently using",
    "PATH_NOT_FOUND",
    "FAILED_READ_FILE.FILE_NOT_EXIST",
)


def two_drivers(stage: Stage, fault: Fault) -> None:
    other = stage.start_another()
    _await_one_to_give_up(stage, other)
    if stage.staged is None:
        wait_for(
            lambda: other.exit_status() is not None or other.reports(),
            time.monotonic() + _PATIENCE,
            "of two drivers the one that is left does not write",
        )
    _end_another(stage, other, fault)


def frozen_query(stage: Stage, fault: Fault) -> None:
    """The whole query, including tasks, sleeps while another query runs, and wakes up."""
    # A staged query's second driver writes the frozen driver's batch, or also the next ones.
    batches = 1 if stage.staged is None else 1 + int(fault.choice * 3)
    pids = [stage.query.pid, *processes.children(stage.query.pid)]
    processes.send(pids, signal.SIGSTOP)
    try:
        other = stage.start_another()
        end = time.monotonic() + _PATIENCE
        while other.reports() < batches:
            if time.monotonic() > end or other.exit_status() is not None:
                log = other.text()[-2_000:]
                raise TrialError(f"a second driver does not take a frozen one over: {log}")
            time.sleep(0.05)
    finally:
        processes.send(pids, signal.SIGCONT)
    _await_one_to_give_up(stage, other)
    _end_another(stage, other, fault)


def _await_one_to_give_up(stage: Stage, other: Driver) -> None:
    end = time.monotonic() + _PATIENCE
    counts: list[tuple[int, int]] = []
    while other.exit_status() is None and stage.query.exit_status() is None:
        time.sleep(0.02)
        both = stage.query.reports(), other.reports()
        # The fenced driver may have been in a batch, and have reported it late. Each driver may
        # have taken over from the other once.
        if both[1] and (not counts or min(a - b for a, b in zip(both, counts[-1], strict=True))):
            counts.append(both)
        if len(counts) > _BOTH_WRITE:
            seen = f"both have written {_BOTH_WRITE} times beside each other"
            raise ViolationError(Rule.ONE_RUN, seen)
        if time.monotonic() > end:
            raise TrialError("of two drivers of one group neither has given up")


def _end_another(stage: Stage, other: Driver, fault: Fault) -> None:
    """Ends the second driver, some time after one of the two has given up for a valid reason.

    If the query is staged, both may give up: Spark stops at another run's checkpoint entry.
    """
    time.sleep(fault.seconds)
    ended = [one for one in (other, stage.query) if one.exit_status() is not None]
    good = _CHECKPOINT_IN_USE
    if stage.staged is None:
        if len(ended) > 1:
            raise TrialError("both drivers have given up")
        good, ended = (_FENCED,), [one for one in ended if one is other]
    for one in ended:
        if not any(words in one.text() for words in good):
            raise TrialError(f"a driver has ended for another reason: {one.text()[-3_000:]}")
    other.kill()
