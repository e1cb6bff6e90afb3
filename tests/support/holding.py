"""Rows that make a task wait in the middle of its transaction."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from support.flow import Flow
from support.queries import QueryProcess, until

SMALL_BATCHES: Final = {"spark.sql.execution.arrow.maxRecordsPerBatch": "50"}
"""Configuration of a session in which earlier rows reach the sink before the held row."""
SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.interval": "50ms",
}
"""Configuration of a session that copies a slow task once the other of two tasks has ended. The
copy, which writes nothing, ends before the original, in each attempt."""
LONG_TRANSACTIONS: Final[dict[str, Any]] = {
    "transaction_timeout_ms": 600_000,
    "max_transaction_ms": 300_000,
}
"""Settings with which no transaction of a query ends while its task waits."""


def produce_with_hold(flow: Flow) -> list[str]:
    """Produces 500 rows in each of two partitions; the 401st row of partition 0 is "hold"."""
    first = [f"a{n}" for n in range(400)] + ["hold"] + [f"b{n}" for n in range(99)]
    second = [f"c{n}" for n in range(500)]
    # Large enough for the rows before the held one to leave all buffers on the way to the sink.
    padding = b"x" * 4_000
    flow.produce(first, partition=0, key=padding)
    flow.produce(second, partition=1, key=padding)
    return sorted(first + second)


def until_held(query: QueryProcess) -> None:
    """Waits until only the held row's transaction is open."""
    flow = query.flow
    query.until(
        lambda: flow.committed(stable=False).get(1) == 500, "the other partition's end", 180
    )
    # The other partition's transaction may not have ended yet, although its offset is committed.
    query.until(flow.ongoing_transactions, "an ongoing transaction")


class HeldRows:
    """A query's rows; tasks wait before these rows until the test lets them continue."""

    def __init__(self, directory: Path) -> None:
        self._reached, self._go = directory / "reached", directory / "go"

    def of(self, frame: DataFrame) -> DataFrame:
        """The rows of a stream."""
        reached, go = self._reached, self._go

        def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                reached.touch()
                until(go.exists, lambda: "the test to let the rows go")
                yield batch

        return frame.mapInArrow(wait, frame.schema)

    def until_reached(self) -> None:
        """Waits until a task has rows."""
        until(self._reached.exists, lambda: "the first rows in a task")

    def let_go(self) -> None:
        """Lets the tasks continue."""
        self._go.touch()


def hold_written_once(flow: Flow, expected: list[str]) -> None:
    """Checks that the rows of `produce_with_hold` are in the output once, and committed."""
    assert sorted(flow.values()) == expected
    assert flow.committed() == {0: 500, 1: 500}
    assert flow.open_transactions() == []
