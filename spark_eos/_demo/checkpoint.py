"""Reads a query's checkpoint from outside: which batch is running, and what it covers."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunningBatch:
    """A batch that Spark has started; ``start`` and ``end`` count the orders up to there."""

    batch_id: int
    start: int
    end: int


def running_batch(checkpoint: Path) -> RunningBatch | None:
    """The batch that is not yet in the commit log, or None between batches."""
    begun = _newest(checkpoint / "offsets")
    if begun is None or begun == _newest(checkpoint / "commits"):
        return None
    start = _orders_until(checkpoint, begun - 1) if begun else 0
    return RunningBatch(begun, start, _orders_until(checkpoint, begun))


def finished_orders(checkpoint: Path) -> int:
    """Number of orders in all batches of the commit log."""
    last = _newest(checkpoint / "commits")
    return 0 if last is None else _orders_until(checkpoint, last)


def is_finished(checkpoint: Path, batch: RunningBatch) -> bool:
    """Whether the batch is in the commit log."""
    return (checkpoint / "commits" / str(batch.batch_id)).exists()


def _orders_until(checkpoint: Path, batch_id: int) -> int:
    # The topic is read from offset 0 and has no gaps, so its end offsets count its records.
    last_line = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1]
    return sum(sum(ends.values()) for ends in json.loads(last_line).values())


def _newest(log: Path) -> int | None:
    try:
        # Spark's temporary files begin with a dot.
        return max((int(p.name) for p in log.iterdir() if p.name.isdigit()), default=None)
    except FileNotFoundError:
        return None
