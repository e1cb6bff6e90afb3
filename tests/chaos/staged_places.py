"""Places that a staged batch comes to, where the harness can stop its driver.

A file ``at-PLACE`` in the control directory stops the driver's process at that place, which it
tells by a file ``reached-PLACE``. A task that is being staged has a place too: it waits there.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_eos._progress.staged import StagedProgress
from spark_eos._spark.sink_run import SinkRun
from spark_eos._spark.staged_copies import StagedCopies

# In the middle of the job that stages; the copy is complete and no commit names it; a commit names
# it; older copies are removed; its rows are written; the batch's end is committed.
STAGING, BEFORE_STAGED_COMMIT, BEFORE_SWEEP, BEFORE_RELAY, BEFORE_END, BEFORE_COMMIT = PLACES = (
    "staging",
    "before-staged-commit",
    "before-sweep",
    "before-relay",
    "before-end",
    "before-commit",
)
# Longer than the harness needs to notice.
_WAITING = 30.0


def ask(control: Path, place: str) -> None:
    """Whoever comes to a place next stops there."""
    _reached(control, place).unlink(missing_ok=True)
    _asked(control, place).touch()


def take_back(control: Path, place: str) -> bool:
    """Nobody shall stop there any more; returns whether nobody has."""
    try:
        _asked(control, place).unlink()
    except FileNotFoundError:
        return False
    return True


def is_reached(control: Path, place: str) -> bool:
    """Whether somebody has stopped there."""
    return _reached(control, place).exists()


def _asked(control: Path, place: str) -> Path:
    return control / f"at-{place}"


def _reached(control: Path, place: str) -> Path:
    return control / f"reached-{place}"


def obeys(control: Path, place: str) -> bool:
    """Whether whoever has come to a place is to stop there; the harness then waits for it."""
    if not take_back(control, place):
        return False
    _reached(control, place).touch()
    return True


def wait_if_asked(control: Path) -> None:
    """For tasks: waits in the middle of staging."""
    if obeys(control, STAGING):
        time.sleep(_WAITING)


def stop_at_places(control: Path) -> None:
    """Makes this driver stop where it is asked to."""

    def come_to(place: str) -> None:
        if obeys(control, place):
            os.kill(os.getpid(), signal.SIGSTOP)

    _around(StagedCopies, "stage", after=lambda: come_to(BEFORE_STAGED_COMMIT))
    _around(
        StagedCopies,
        "remove_old",
        before=lambda: come_to(BEFORE_SWEEP),
        after=lambda: come_to(BEFORE_RELAY),
    )
    _around(StagedProgress, "check_written", before=lambda: come_to(BEFORE_END))
    _around(SinkRun, "write", after=lambda: come_to(BEFORE_COMMIT))


def _nothing() -> None:
    pass


def _around(
    owner: type,
    name: str,
    *,
    before: Callable[[], None] = _nothing,
    after: Callable[[], None] = _nothing,
) -> None:
    method = getattr(owner, name)

    def work(*arguments: Any, **named: Any) -> Any:
        before()
        found = method(*arguments, **named)
        after()
        return found

    setattr(owner, name, work)
