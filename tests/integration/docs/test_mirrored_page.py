"""docs/mirrored.md: its query and its commands do what the page says."""

import shlex

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from spark_eos._cli import main
from support.jobs import job
from support.mirroring import MirroredFlow
from support.pages import code_blocks, end_queries, run_block

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
    for block in code_blocks("mirrored", "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            _run(line, words)
    assert flow.committed() == {0: 1200, 1: 50}


def _run(line: str, instead: dict[str, str]) -> None:
    given = shlex.split(line)
    if given[0] == "spark-submit":
        script = given.index("jobs/relay.py")
        job("relay").main.make_context("relay", given[script + 1 :])
        return
    assert given[0] == "spark-eos"
    for words, others in instead.items():
        line = line.replace(words, others)
    source = instead['"orders"'].strip("'")
    line = line.replace("--set orders:", f"--set {source}:")
    result = CliRunner().invoke(main, shlex.split(line)[1:])
    assert result.exit_code == 0, f"{line}: {result.output}"
