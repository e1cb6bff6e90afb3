"""Reads a query's checkpoint from outside: which batch is running, and what it covers."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunningBatch:
    """A batch that Spark has started and that is not yet in its commit log.

    Attributes:
        batch_id: Spark's number of the batch.
        start: Number of source records in all earlier batches.
        end: Number of source records in all batches, including this one.
    """

    batch_id: int
    start: int
    end: int


class Checkpoint:
    """A query's checkpoint in a local directory.

    Args:
        directory: The query's checkpoint location.
    """

    def __init__(self, directory: Path) -> None:
        self._offsets = directory / "offsets"
        self._commits = directory / "commits"

    def running_batch(self) -> RunningBatch | None:
        """Returns the running batch, or None between batches."""
        begun = _newest(self._offsets)
        if begun is None or begun == _newest(self._commits):
            return None
        start = self._records_until(begun - 1) if begun else 0
        return RunningBatch(begun, start, self._records_until(begun))

    def finished(self) -> int:
        """Returns the number of source records in all batches of the commit log."""
        last = _newest(self._commits)
        return 0 if last is None else self._records_until(last)

    def _records_until(self, batch_id: int) -> int:
        # The topic is read from offset 0 and has no gaps, so its end offsets count its records.
        last_line = (self._offsets / str(batch_id)).read_text().splitlines()[-1]
        return sum(sum(ends.values()) for ends in json.loads(last_line).values())

    def is_committed(self, batch: RunningBatch) -> bool:
        """Whether the batch is in the commit log."""
        return (self._commits / str(batch.batch_id)).exists()


def _newest(log: Path) -> int | None:
    try:
        # Spark's temporary files begin with a dot.
        return max((int(p.name) for p in log.iterdir() if p.name.isdigit()), default=None)
    except FileNotFoundError:
        return None
