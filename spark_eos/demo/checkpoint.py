"""What a query's checkpoint tells from outside: which batch is running, and what it covers."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunningBatch:
    """A batch that Spark has begun and not yet entered in its commit log.

    Attributes:
        batch_id: Its number.
        start: Source records of all batches before it.
        end: Source records of all batches, this one included.
    """

    batch_id: int
    start: int
    end: int


class Checkpoint:
    """A query's checkpoint in a local directory.

    Args:
        directory: The checkpoint location.
    """

    def __init__(self, directory: Path) -> None:
        self._offsets = directory / "offsets"
        self._commits = directory / "commits"

    def running_batch(self) -> RunningBatch | None:
        """The batch that runs now, or None between batches."""
        begun = _newest(self._offsets)
        if begun is None or begun == _newest(self._commits):
            return None
        start = self._records_until(begun - 1) if begun else 0
        return RunningBatch(begun, start, self._records_until(begun))

    def _records_until(self, batch_id: int) -> int:
        # The topic was read from offset 0 on and has no gaps, so end offsets count its records.
        last_line = (self._offsets / str(batch_id)).read_text().splitlines()[-1]
        return sum(sum(ends.values()) for ends in json.loads(last_line).values())

    def is_committed(self, batch: RunningBatch) -> bool:
        """Whether the batch has its entry in the commit log."""
        return (self._commits / str(batch.batch_id)).exists()


def _newest(log: Path) -> int | None:
    try:
        # Temporary files of Spark's begin with a dot.
        return max((int(p.name) for p in log.iterdir() if p.name.isdigit()), default=None)
    except FileNotFoundError:
        return None
