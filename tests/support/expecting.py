"""Manually written outputs and expectations, for comparisons of the two."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_eos.verify import Comparison, Difference, compare
from support.flow import Flow
from support.planting import Transactional

Put = tuple[str | None, str | None]  # key, value


class Outputs(Transactional):
    """A transactional producer of outputs."""

    def __init__(self, flow: Flow, name: str = "outputs") -> None:
        super().__init__(flow, name)

    def begin(self, rows: Iterable[Put], partition: int = 0, topic: str | None = None) -> None:
        """Leaves a transaction open once the broker has its rows."""
        self._producer.begin_transaction()
        for key, value in rows:
            self._producer.produce(topic or self._flow.target, value, key, partition)
        assert self._producer.flush(60) == 0

    def write(self, rows: Iterable[Put], partition: int = 0, topic: str | None = None) -> None:
        self.begin(rows, partition, topic)
        self.commit()


def parquet(path: Path, rows: Iterable[Put], **more: Any) -> Path:
    found = list(rows)
    columns = {"key": [key for key, _ in found], "value": [value for _, value in found]}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({**columns, **more}), path)
    return path


def compared_with(flow: Flow, expect: object, **more: Any) -> Comparison:
    arguments: dict[str, Any] = {
        "kafka": flow.kafka,
        "outputs": [flow.target],
        "expect": expect,
        "timeout": 10,
        **more,
    }
    return compare(**arguments)


def differs(flow: Flow, expect: object, found: Mapping[Difference, int], **more: Any) -> Comparison:
    """Compares the flow's output with expected rows, and checks the counts of all differences."""
    comparison = compared_with(flow, expect, **more)
    assert counts(comparison) == dict(found)
    return comparison


def counts(comparison: Comparison) -> dict[Difference, int]:
    return {kind: found.count for kind, found in comparison.anomalies.items()}


def examples_of(comparison: Comparison, kind: Difference) -> list[tuple[Any, ...]]:
    """Return each example's key, value, expected value, source, output offsets and detail."""
    return [
        (
            one.key,
            one.value,
            one.expected,
            one.source,
            [f"{at.partition}:{at.offset}" for at in one.outputs],
            one.detail,
        )
        for one in comparison.found[kind].examples
    ]
