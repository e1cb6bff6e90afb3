"""``spark-eos status`` for a staged query, whose committed offsets are not source positions."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from spark_eos._kafka import cluster
from spark_eos._kafka.offset_metadata import KnownPartitions, position_metadata
from spark_eos._kafka.offsets import commit_offsets
from spark_eos._kafka.stored_text import StagedBatch
from spark_eos._kafka.topic_partition import TopicPartition
from support.flow import Flow
from support.groups import set_offsets
from support.members import deadline, started
from support.operating import document, run

_QUERY = "0a1b2c3d-1111-4222-8333-444455556666"
_BATCH = StagedBatch(_QUERY, 7, "7-ab12cd34", 1_500, 4, "00d1e4a77b3c9f52")


@pytest.fixture
def progress(flow: Flow) -> str:
    """A progress topic with one more partition than batches need, and a group that had members."""
    name = f"some-topic-{uuid.uuid4().hex[:10]}"
    flow.broker.create_topic(name, 6)
    with started(flow):
        pass
    return name


def _commit(
    flow: Flow,
    offsets: Mapping[TopicPartition, int],
    staged: Mapping[TopicPartition, StagedBatch],
) -> None:
    """Commits offsets like a driver; only some have a staged batch in their metadata."""
    with flow.connections() as connections:
        topics = cluster.topics(connections, {topic for topic, _ in offsets}, deadline())
        ids = {name: topic.topic_id for name, topic in topics.items()}
        texts = KnownPartitions(staged=staged).including(offsets, ids).texts(offsets)
        codes = commit_offsets(
            connections, flow.group_id, None, offsets, ids, deadline(), metadata=texts
        )
    assert set(codes.values()) == {0}


def _stage(flow: Flow, progress: str, batch: StagedBatch, *files: int) -> None:
    offsets = {TopicPartition(progress, 0): batch.batch} | {
        TopicPartition(progress, number): offset for number, offset in enumerate(files, 1)
    }
    _commit(
        flow, {**offsets, TopicPartition(flow.source, 0): 2}, {TopicPartition(progress, 0): batch}
    )


@pytest.mark.parametrize(
    "forged",
    [
        {"suspect": [float("inf"), 1]},
        {"partitions": "0-20000000"},
        {"staged": {**_BATCH._asdict(), "directory": "../../../payroll"}},
        {"topics": [[[[[[[[[[]]]]]]]]]]},
    ],
)
def test_a_text_that_another_client_has_written_has_a_line(
    flow: Flow, progress: str, forged: dict[str, Any]
) -> None:
    text = json.dumps({"spark-eos": 2, "partitions": "0", "topics": "", **forged})
    partition = TopicPartition(progress, 0)
    set_offsets(flow.bootstrap_servers, flow.group_id, {partition: 7}, {partition: text})
    found = document(flow)
    assert (found["delivery"], found["staged"]) == (None, None)
    assert found["foreign_offsets"] == [{"topic": progress, "partition": 0}]
    line = "1 offset with metadata set by another client, not by spark-eos: "
    assert f"{line}{progress} 0\n" in run("status", flow).stdout


def _row(text: str, start: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return line.split()


def test_the_last_staged_batch_is_shown(flow: Flow, progress: str) -> None:
    flow.produce(range(5), partition=0)
    # Written; the next row is row 3; written by a batch before; nothing written yet.
    _stage(flow, progress, _BATCH, 8 << 32, 7 << 32 | 3, 7 << 32, (7 << 32) - 1)
    found = document(flow)
    assert (found["group"]["state"], found["members"]) == ("Empty", [])
    assert {p["member_id"] for p in found["partitions"]} == {None}
    assert found["delivery"] == "staged"
    assert found["staged"] == {
        "progress_topic": progress,
        "query_id": _QUERY,
        "batch": 7,
        "directory": "7-ab12cd34",
        "rows": 1_500,
        "files": 4,
        "files_written": 1,
        "written": False,
    }
    # Sources have a lag, as ever; progress partitions are in no list and no sum.
    assert {p["topic"] for p in found["partitions"]} == {flow.source}
    assert found["lag"] == 3
    table = run("status", flow).stdout
    assert ", delivery staged, 0 members, lag 3" in table
    assert str(8 << 32) not in table
    assert f"{8 << 32:,}" not in table
    assert _row(table, progress)[1:7] == ["7", "1,500", "1", "of", "4", "7-ab12cd34"]
    assert f"Last staged batch of Spark's query {_QUERY}\n" in table
    assert "…" not in table
    assert max(len(line) for line in table.splitlines()) <= 100


@pytest.mark.parametrize(
    ("batch", "shown"),
    [
        # A partition that is no file of this batch does not count.
        (_BATCH, ["7", "1,500", "4", "of", "4", "7-ab12cd34"]),
        # Without rows, there is nothing left to write.
        (_BATCH._replace(batch=8, directory=None, rows=0), ["8", "0", "4", "of", "4", "-"]),
    ],
)
def test_all_files_are_written(
    flow: Flow, progress: str, batch: StagedBatch, shown: list[str]
) -> None:
    _stage(flow, progress, batch, *[8 << 32] * 5)
    staged = document(flow)["staged"]
    assert (staged["files_written"], staged["written"]) == (4, True)
    assert _row(run("status", flow).stdout, progress)[1:7] == shown


def test_members_may_have_progress_partitions(flow: Flow, progress: str) -> None:
    _stage(flow, progress, _BATCH, *[8 << 32] * 4)
    flow.partitions = 6
    flow.broker.add_partitions(flow.source, 6)
    with started(flow, also=[progress]):
        found = document(flow)
        assert run("status", flow).exit_code == 0
    assigned = {
        partition["topic"] for member in found["members"] for partition in member["assigned"]
    }
    assert assigned == {flow.source, progress}
    assert {p["topic"] for p in found["partitions"]} == {flow.source}
    assert len(found["partitions"]) == 6
    assert found["staged"]["batch"] == 7


def test_without_a_staged_commit_any_topic_is_a_source(flow: Flow, progress: str) -> None:
    flow.produce(range(5), partition=0)
    # Text of a staged commit, but not where a staged commit is.
    _commit(
        flow,
        {TopicPartition(progress, 0): 0, TopicPartition(progress, 1): 0},
        {TopicPartition(progress, 1): _BATCH},
    )
    found = document(flow)
    assert (found["delivery"], found["staged"]) == (None, None)
    assert [p["lag"] for p in found["partitions"]] == [0, 0, None, None, None, None]
    assert "staged" not in run("status", flow).stdout


@pytest.mark.parametrize("batch", [6, 8])
def test_the_staged_commit_with_the_latest_batch_is_shown(
    batch: int, flow: Flow, progress: str
) -> None:
    """A query with a new progress topic leaves its offsets of the old one behind."""
    other = f"{progress}-2"
    flow.broker.create_topic(other, 6)
    _stage(flow, progress, _BATCH, *[8 << 32] * 4)
    _stage(flow, other, _BATCH._replace(batch=batch, directory=f"{batch}-ab12cd34"))
    found = document(flow)
    latest = other if batch == 8 else progress
    assert found["staged"]["progress_topic"] == latest
    assert {p["topic"] for p in found["partitions"]} == {flow.source}


def test_a_staged_querys_own_positions_are_not_foreign(flow: Flow, progress: str) -> None:
    flow.produce(range(5), partition=0)
    _stage(flow, progress, _BATCH, *[8 << 32] * 4)
    partition = TopicPartition(flow.source, 0)
    texts = {partition: position_metadata(progress)}
    set_offsets(flow.bootstrap_servers, flow.group_id, {partition: 4}, texts)
    found = document(flow)
    assert found["foreign_offsets"] == []
    assert [p["committed_offset"] for p in found["partitions"] if p["partition"] == 0] == [4]


def test_progress_of_a_staged_query_can_not_be_set(flow: Flow, progress: str) -> None:
    _stage(flow, progress, _BATCH, *[8 << 32] * 4)
    before = flow.group_commits()
    source = ("--source-bootstrap-servers", flow.bootstrap_servers)
    places = [text for n in range(2) for text in ("--set", f"{flow.source}:{n}=0")]
    result = run("progress", flow, *places, "--progress-topic", progress, *source)
    assert result.exit_code == 1
    assert "does not belong to a mirrored query" in result.output
    assert flow.group_commits() == before
