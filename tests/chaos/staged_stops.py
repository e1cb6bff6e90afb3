"""Stops the driver under test at the places of `chaos.staged_places`."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos.staged_places import (
    BEFORE_COMMIT,
    BEFORE_END,
    BEFORE_RELAY,
    BEFORE_STAGED_COMMIT,
    BEFORE_SWEEP,
    obeys,
)
from spark_eos._delivery.staged import StagedDelivery
from spark_eos._delivery.staged_files import ParquetFiles
from spark_eos._sink.batches import SinkRun


def stop_at_places(control: Path) -> None:
    """Makes this driver stop at requested places."""

    def come_to(place: str) -> None:
        if obeys(control, place):
            os.kill(os.getpid(), signal.SIGSTOP)

    _around(ParquetFiles, "stage", after=lambda: come_to(BEFORE_STAGED_COMMIT))
    _around(
        ParquetFiles,
        "remove_old",
        before=lambda: come_to(BEFORE_SWEEP),
        after=lambda: come_to(BEFORE_RELAY),
    )
    _around(StagedDelivery, "check_written", before=lambda: come_to(BEFORE_END))
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
