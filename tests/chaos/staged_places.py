"""Places in a staged batch where the harness can stop its driver.

A file ``at-PLACE`` in the control directory stops the driver's process at that place; the driver
reports this with a file ``reached-PLACE``. A task that stages rows also has a place, and waits
there.
"""

import time
from pathlib import Path

# In the middle of the staging job; the copy is complete, but no commit names it; a commit names it;
# older copies are removed; its rows are written; the batch's end is committed.
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
    """Stops the next process that reaches a place."""
    _reached(control, place).unlink(missing_ok=True)
    _asked(control, place).touch()


def take_back(control: Path, place: str) -> bool:
    """Withdraws the request to stop; returns True if no process has stopped."""
    try:
        _asked(control, place).unlink()
    except FileNotFoundError:
        return False
    return True


def is_reached(control: Path, place: str) -> bool:
    """Return True if a process has stopped there."""
    return _reached(control, place).exists()


def _asked(control: Path, place: str) -> Path:
    return control / f"at-{place}"


def _reached(control: Path, place: str) -> Path:
    return control / f"reached-{place}"


def obeys(control: Path, place: str) -> bool:
    """Return True if a process at this place must stop; the harness then waits for it."""
    if not take_back(control, place):
        return False
    _reached(control, place).touch()
    return True


def wait_if_asked(control: Path) -> None:
    """For tasks: waits in the middle of staging."""
    if obeys(control, STAGING):
        time.sleep(_WAITING)
