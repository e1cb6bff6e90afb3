"""``spark-eos progress`` and ``spark-eos status`` for a mirrored query."""

import re
from contextlib import closing

import pytest
from click.testing import CliRunner, Result
from kafka.protocol.admin import DescribeProducersRequest, ListTransactionsRequest

from spark_eos._cli import main
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.blocked_partitions import held_back
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.list_offsets import end_offsets
from spark_eos._kafka.silent_brokers import SilentBrokers
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import OffsetsLostError, WriteError
from support.flow import transaction
from support.groups import delete_offsets, set_offsets
from support.members import deadline
from support.mirroring import MirroredFlow, mirrored_run
from support.operating import document, run, without_layout
from support.runs import Checkpoint, written_once
from support.writing import speak_at_most


def _source(flow: MirroredFlow) -> list[str]:
    return ["--source-bootstrap-servers", flow.source_servers]


def _set(flow: MirroredFlow, *arguments: str) -> Result:
    return run("progress", flow, *arguments)


@pytest.fixture
def written(mirrored_flow: MirroredFlow) -> MirroredFlow:
    """A mirrored query that was stopped at offsets 10 and 20."""
    with mirrored_run(mirrored_flow) as runs:
        runs.batch(10, 20)
    return mirrored_flow


def test_status_and_progress_name_the_source(written: MirroredFlow) -> None:
    flow = written
    flow.produce(range(15), partition=0)
    flow.produce(range(20), partition=1)
    found = document(flow)
    assert found["delivery"] == "mirrored"
    assert [
        (p["topic"], p["partition"], p["committed_offset"], p["lag"]) for p in found["partitions"]
    ] == [
        (flow.source, 0, 10, None),
        (flow.source, 1, 20, None),
    ]
    assert [p["lag"] for p in document(flow, *_source(flow))["partitions"]] == [5, 0]
    shown = " ".join(run("status", flow, *_source(flow)).stdout.split())
    assert ", delivery mirrored, 0 members, lag 5" in shown
    shown = " ".join(run("status", flow).stdout.split())
    assert "lag unknown (known only with --source-bootstrap-servers)" in shown
    rows = [line.split() for line in run("progress", flow).stdout.splitlines()]
    assert [row[:5] for row in rows if row[0] == flow.source] == [
        [flow.source, "0", "10", flow.progress, "0"],
        [flow.source, "1", "20", flow.progress, "1"],
    ]


def test_an_older_source_cluster_answers(
    written: MirroredFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = written
    speak_at_most(monkeypatch, {DescribeProducersRequest.API_KEY: -1})  # as Kafka 2.7
    with transaction(flow.source_servers, commit=False) as producer:
        producer.produce(flow.source, b"0", partition=0)
        assert producer.flush(60) == 0
        result = run("status", flow, *_source(flow))
    assert result.exit_code == 0, result.output
    assert "does not answer" not in result.stdout
    assert "or by unknown ones" in without_layout(result.stdout)


def test_an_older_source_cluster_lists_no_transactions(
    mirrored_flow: MirroredFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = mirrored_flow
    speak_at_most(monkeypatch, {ListTransactionsRequest.API_KEY: -1})  # as Kafka 2.8
    with (
        transaction(flow.source_servers, commit=False) as producer,
        closing(Connections(ClientSettings(flow.source_kafka))) as connections,
    ):
        producer.produce(flow.source, b"0", partition=0)
        assert producer.flush(60) == 0
        silent = SilentBrokers(connections)
        ends = end_offsets(connections, [flow.source], deadline(), silent=silent)
        (held,) = held_back(connections, ends, deadline(), silent)
    assert (held.partition, held.transaction, silent.names) == (0, None, ())
    assert held.producer_id is not None


def test_progress_is_set(written: MirroredFlow) -> None:
    flow = written
    place = f"{flow.source}:1"
    assert "was 20, would be 15" in _set(flow, "--set", f"{place}=15", "--dry-run").stdout
    assert flow.committed() == {0: 10, 1: 20}
    assert _set(flow, "--set", f"{place}=15").stdout == f"{flow.source}-1: was 20, is 15\n"
    # The operator's offset counts: records from there on are written again.
    with mirrored_run(flow) as runs:
        report = runs.batch(10, 21)
    assert (report.rows_written, report.rows_skipped) == (6, 25)


def test_a_lost_progress_is_set(written: MirroredFlow) -> None:
    flow = written
    delete_offsets(flow.bootstrap_servers, flow.group_id, [TopicPartition(flow.progress, 1)])
    result = _set(flow, "--set", f"{flow.source}:1=20")
    assert result.exit_code == 1
    assert "give --source-bootstrap-servers" in result.output
    result = _set(flow, "--set", f"{flow.source}:1=20", *_source(flow))
    assert result.stdout == f"{flow.source}-1: was unset, is 20\n"
    with mirrored_run(flow) as runs:
        runs.batch(12, 22)
    written_once(flow, 12, 22)


def test_another_source_cluster_is_refused(written: MirroredFlow) -> None:
    flow = written
    # Embedded brokers all have the same cluster id.
    here = flow.identity[0]
    texts = {n: offset.metadata for n, offset in flow.progress_offsets().items()}
    assert here in texts[0]
    first = TopicPartition(flow.progress, 0)
    text = texts[0].replace(here, "elsewhere")
    set_offsets(flow.bootstrap_servers, flow.group_id, {first: 10}, {first: text})
    refused = f"of cluster 'elsewhere', but source_kafka .* points to cluster '{here}'"
    result = run("status", flow, *_source(flow))
    assert result.exit_code == 1
    assert re.search(refused, result.output)
    delete_offsets(flow.bootstrap_servers, flow.group_id, [TopicPartition(flow.progress, 1)])
    result = _set(flow, "--set", f"{flow.source}:1=20", *_source(flow))
    assert result.exit_code == 1
    assert re.search(refused, result.output)
    assert flow.committed() == {0: 10}


def test_unknown_progress_can_be_set(written: MirroredFlow) -> None:
    flow = written
    offsets = {TopicPartition(flow.progress, 0): 0, TopicPartition(flow.progress, 1): 0}
    set_offsets(flow.bootstrap_servers, flow.group_id, offsets)
    with (
        mirrored_run(flow) as runs,
        pytest.raises(OffsetsLostError, match=f"--progress-topic {flow.progress}"),
    ):
        runs.batch(12, 22)
    wanted = ["--set", f"{flow.source}:0=10", "--set", f"{flow.source}:1=20", *_source(flow)]
    assert "To begin with an offset, give --progress-topic" in _set(flow, *wanted).output
    result = _set(flow, *wanted[2:], "--progress-topic", flow.progress)
    assert result.exit_code == 1
    assert f"set these too: {flow.source}:0" in result.output
    assert _set(flow, *wanted, "--progress-topic", flow.progress).exit_code == 0
    # With an empty checkpoint.
    with mirrored_run(flow) as runs:
        runs.batch(12, 22)
    written_once(flow, 12, 22)
    result = _set(flow, *wanted, "--progress-topic", "another")
    assert f"is in topic '{flow.progress}', not in 'another'" in result.output


def test_a_mark_is_taken_off(mirrored_flow: MirroredFlow) -> None:
    flow = mirrored_flow
    with mirrored_run(flow) as runs, pytest.raises(WriteError, match="spark-eos progress"):
        runs.batch(10, 0, tasks=[[(0, range(4))], [(0, range(4, 10))]])
    with (
        mirrored_run(flow) as runs,
        pytest.raises(OffsetsLostError, match="may be missing"),
    ):
        runs.batch(10, 0)
    assert _set(flow, "--set", f"{flow.source}:0=10").exit_code == 0
    with mirrored_run(flow) as runs:
        runs.batch(12, 0)
    assert flow.committed() == {0: 12, 1: 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "orders"], "'orders' is not of the form topic:partition=offset"),
        (["--set", "a:0=1", "--set", "a:0=2"], "a:0 is given twice"),
        (["--source-kafka", "acks=all"], "--source-kafka needs --source-bootstrap-servers"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str) -> None:
    given = ["progress", "--bootstrap-servers", "localhost:1", "--group-id", "g"]
    result = CliRunner().invoke(main, [*given, *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_what_can_not_be_set(written: MirroredFlow) -> None:
    flow = written
    result = _set(flow, "--set", f"{flow.source}:7=1", *_source(flow))
    assert f"{flow.source}-7 does not exist in the source cluster" in result.output
    with mirrored_run(flow, checkpoint=Checkpoint(flow)) as runs:
        runs.batch(11, 20)
        result = _set(flow, "--set", f"{flow.source}:0=0")
    assert result.exit_code == 1
    assert "stop the query first" in result.output
    assert flow.committed() == {0: 11, 1: 20}


def test_a_group_that_mirrors_nothing(mirrored_flow: MirroredFlow) -> None:
    result = run("progress", mirrored_flow)
    assert result.exit_code == 1
    assert "has no offset of a mirrored query" in result.output
