"""docs/mirrored.md: its query does what the page says."""

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from support.mirroring import MirroredFlow
from support.pages import code_blocks, run_block

(QUERY,) = code_blocks("mirrored", "python")

pytestmark = pytest.mark.slow


def test_the_query(
    spark_eos_session: SparkSession,
    mirrored_flow: MirroredFlow,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow = mirrored_flow
    flow.broker.create_topic(flow.source, flow.partitions)
    flow.produce(range(100), headers=[("h", b"1")])

    def await_termination(query: StreamingQuery, _timeout: Any = None) -> None:
        query.processAllAvailable()
        query.stop()

    monkeypatch.setattr(StreamingQuery, "awaitTermination", await_termination)
    words = {
        "west:9092": flow.bootstrap_servers,
        "east:9092": flow.source_servers,
        '"orders"': repr(flow.source),
        "orders-to-west": flow.group_id,
        "/checkpoints/": flow.checkpoint,
    }
    names = run_block(QUERY, words, spark=spark_eos_session)
    names["sink"].close()
    copied = flow.written(flow.source)
    assert [(m.partition(), int(m.value() or b"")) for m in copied] == [
        (partition, number) for partition in range(2) for number in range(partition, 100, 2)
    ]
    assert {str(m.headers()) for m in copied} == {"[('h', b'1')]"}
