"""docs/mirrored.md: its query and its commands do what the page says."""

import pytest
from pyspark.sql import SparkSession

from support.mirroring import MirroredFlow
from support.page_commands import run_commands
from support.pages import code_blocks, end_queries, replaced, run_block

(QUERY,) = code_blocks("mirrored", "python")
COMMANDS = code_blocks("mirrored", "bash")

pytestmark = pytest.mark.slow


def test_the_query(
    spark_eos_session: SparkSession,
    mirrored_flow: MirroredFlow,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow = mirrored_flow
    flow.broker.create_topic(flow.source, flow.partitions)
    flow.produce(range(100), headers=[("h", b"1")])
    end_queries(monkeypatch)
    words = {
        "west:9092": flow.bootstrap_servers,
        "east:9092": flow.source_servers,
        '"orders"': repr(flow.source),
        "orders-to-west": flow.group_id,
        "checkpoints/": flow.checkpoint,
    }
    names = run_block(QUERY, words, spark=spark_eos_session)
    names["sink"].close()
    copied = flow.written(flow.source)
    assert [(m.partition(), int(m.value() or b"")) for m in copied] == [
        (partition, number) for partition in range(2) for number in range(partition, 100, 2)
    ]
    assert {str(m.headers()) for m in copied} == {"[('h', b'1')]"}
    words["--set orders:"] = f"--set {flow.source}:"
    for block in COMMANDS:
        run_commands(replaced(block, words))
    assert flow.committed() == {0: 1200, 1: 50}
