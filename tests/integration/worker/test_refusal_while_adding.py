"""A broker refuses a record while more rows of its transaction are being added; without Spark."""

import time

import pyarrow as pa
import pytest

from spark_eos.worker.arrow_columns import writable_batches
from spark_eos.worker.librdkafka_errors import TransactionError
from spark_eos.worker.records import SourceRows, source_rows
from support.flow import Flow
from support.members import started
from support.writing import row_batch, transactions

_LIMIT = 10_000


def _rows(flow: Flow, first: int, *sizes: int) -> SourceRows:
    batch = row_batch(flow, 0, *range(first, first + len(sizes)))
    values = pa.array([b"x" * size for size in sizes], pa.binary())
    batch = batch.set_column(batch.schema.get_field_index("value"), "value", values)
    (arranged,) = writable_batches(iter([batch]))
    (found,) = source_rows(arranged)
    return found


def test_the_row_to_blame_is_named(flow: Flow) -> None:
    flow.produce(range(4), partition=0)
    small = f"small-{flow.name}"
    flow.broker.create_topic(small, 1, {"max.message.bytes": str(_LIMIT)})
    with started(flow) as membership, transactions(flow, membership, topic=small) as writing:
        writing.add(_rows(flow, 0, 10, 2 * _LIMIT))
        # librdkafka has sent them meanwhile, and takes no more records.
        time.sleep(1)
        blamed = f"source {flow.source}-0 offset 1, for topic '{small}'.*Message size too large"
        with pytest.raises(TransactionError, match=blamed):
            writing.add(_rows(flow, 2, 20, 30))
        writing.abort()
    assert flow.values(small) == []
    assert flow.committed() == {}
