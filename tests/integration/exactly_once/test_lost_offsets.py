"""Expired or deleted offsets are restored if the checkpoint proves them, and refused otherwise.

Deleting an offset leaves the group in the same state as expiry.
`test_offsets_of_idle_partitions_outlive_their_retention` waits for real expiry.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.consumer import OffsetFetchRequest
from pyspark.sql import SparkSession

from spark_eos import ExactlyOnceSink, LostRecords
from spark_eos._exactly_once import offsets as group_offsets
from spark_eos._kafka import offsets
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.stored_text import StagedBatch
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import CheckpointError, OffsetsLostError, WriteError
from spark_eos.testing import EmbeddedKafka
from support import groups
from support.flow import Flow
from support.members import deadline
from support.planting import remove
from support.proxied_worker import unstable
from support.proxy import KafkaProxy
from support.proxy_faults import Rewrite
from support.queries import run_available, until
from support.runs import Checkpoint, running


def _lose(flow: Flow, *partitions: int, topic: str | None = None) -> None:
    lost = [TopicPartition(topic or flow.source, partition) for partition in partitions]
    groups.delete_offsets(flow.bootstrap_servers, flow.group_id, lost)


def _known(flow: Flow) -> KnownPartitions:
    with flow.connections() as connections:
        found = offsets.all_group_offsets(connections, flow.group_id, deadline())
    return KnownPartitions.of(found)


def _fail() -> None:
    raise ConnectionError("the driver dies here")


def _written(flow: Flow, *ends: int, **batch: Any) -> Checkpoint:
    """The checkpoint of a run that has written a batch."""
    with running(flow) as runs:
        runs.batch(*ends, **batch)
    return runs.checkpoint


def _refuses(
    flow: Flow, checkpoint: Checkpoint | None, match: str, *ends: int, **batch: Any
) -> None:
    with (
        running(flow, checkpoint=checkpoint) as runs,
        pytest.raises(OffsetsLostError, match=match),
    ):
        runs.batch(*ends, **batch)


def test_an_expired_offset_is_not_taken_for_a_new_partition(flow: Flow) -> None:
    _written(flow, 5, 5)
    _lose(flow, 1)
    # As after the checkpoint was deleted: the first batch of another one.
    _refuses(flow, None, f"{flow.source}-1, although", 9, 9)
    assert len(flow.values()) == 10


def test_what_the_checkpoint_has_finished_is_restored(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = _written(flow, 5, 5)
    groups.delete_group(flow.bootstrap_servers, flow.group_id)
    with running(flow, checkpoint=checkpoint) as runs:
        runs.batch(9, 9)
        runs.written_once(9, 9)
    for partition in (0, 1):
        assert f"the offset of {flow.source}-{partition} was lost" in caplog.text


@pytest.mark.slow
def test_without_offsets_and_checkpoint_a_query_is_new(flow: Flow) -> None:
    for _ in range(2):
        with running(flow) as runs:
            runs.batch(5, 5)
        groups.delete_group(flow.bootstrap_servers, flow.group_id)
    assert sorted(flow.values()) == sorted(2 * [f"{p}/{n}" for p in (0, 1) for n in range(5)])


@pytest.mark.slow
def test_a_batch_that_was_begun_proves_nothing(flow: Flow) -> None:
    checkpoint = Checkpoint(flow)
    with running(flow, checkpoint=checkpoint) as runs:
        runs.batch(5, 5)
        with pytest.raises(ConnectionError):
            runs.batch(9, 9, while_planned=_fail, in_attempt=1)
    groups.delete_group(flow.bootstrap_servers, flow.group_id)
    begun = "batch 1, from 5 to 8, was begun.* everything below 5 is written"
    for _ in range(2):
        _refuses(flow, checkpoint, begun, 9, 9)
    # What the error advises.
    there = {TopicPartition(flow.source, 0): 5, TopicPartition(flow.source, 1): 5}
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, there)
    with running(flow, checkpoint=checkpoint) as runs:
        runs.batch(9, 9)
        runs.written_once(9, 9)


def test_batch_0_half_committed_and_its_offsets_lost(flow: Flow) -> None:
    checkpoint = Checkpoint(flow)
    with running(flow, checkpoint=checkpoint) as runs, pytest.raises(WriteError):
        # Of each partition the first rows are committed, and then comes one out of order.
        runs.batch(9, 9, rows=lambda _, offsets: [*offsets, 0])
    groups.delete_group(flow.bootstrap_servers, flow.group_id)
    _refuses(flow, checkpoint, "batch 0 was begun before", 9, 9)


def test_a_first_start_that_failed_before_writing_continues(flow: Flow) -> None:
    checkpoint = Checkpoint(flow)
    topic = flow.target
    with (
        running(flow, checkpoint=checkpoint, topic="not-there", max_block_ms=1_000) as runs,
        pytest.raises(Exception, match="does not exist"),
    ):
        runs.batch(5, 5)
    with running(flow, checkpoint=checkpoint, topic=topic) as runs:
        runs.batch(5, 5)
        runs.written_once(5, 5)


def test_a_partition_known_only_from_the_marker_is_not_new(flow: Flow) -> None:
    checkpoint = _written(flow, 5, 5)
    flow.broker.add_partitions(flow.source, 3)
    flow.partitions = 3
    # Fails after partition 2 is written; the batch is begun, and the log has no start of it.
    with running(flow, checkpoint=checkpoint) as runs, pytest.raises(WriteError):
        runs.batch(7, 7, 4, rows=lambda p, offsets: [*offsets, 0] if p == 1 else offsets)
    assert [value for value in flow.values() if value.startswith("2/")] == [
        f"2/{n}" for n in range(4)
    ]
    groups.delete_group(flow.bootstrap_servers, flow.group_id)
    # The operator sets what the errors have named, without the texts that name others.
    manual_offsets = {TopicPartition(flow.source, 0): 7, TopicPartition(flow.source, 1): 7}
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, manual_offsets)
    _refuses(flow, checkpoint, f"{flow.source}-2, although the query has read it", 7, 7, 4)


@pytest.mark.slow
def test_a_batch_without_any_partition(flow: Flow) -> None:
    checkpoint = Checkpoint(flow)
    with running(flow, checkpoint=checkpoint) as runs:
        runs.batch(5, 5)
        assert runs.batch().rows_written == 0
    with running(flow, checkpoint=checkpoint) as runs:
        assert runs.batch().rows_written == 0


def test_a_topic_taken_out_expired_and_put_back(flow: Flow) -> None:
    other = f"{flow.source}-b"
    flow.broker.create_topic(other, 1)
    checkpoint = _written(flow, 5, 5, also={other: (5,)})
    # Without it.
    with running(flow, checkpoint=checkpoint) as runs:
        runs.batch(9, 9)
    _lose(flow, 0, topic=other)
    _refuses(flow, checkpoint, f"{other}-0, although it had one before", 9, 9, also={other: (9,)})
    assert len(flow.values()) == 23


@pytest.mark.slow
def test_a_topic_taken_out_and_put_back_goes_on(flow: Flow) -> None:
    other = f"{flow.source}-b"
    flow.broker.create_topic(other, 1)
    _written(flow, 5, 5, also={other: (5,)})
    _written(flow, 9, 9)
    with running(flow) as runs:
        report = runs.batch(9, 9, also={other: (8,)})
    assert report.rows_written == 3
    # Its rows are called as those of partition 0.
    assert sorted(flow.values()) == sorted(
        [*(f"{p}/{n}" for p in (0, 1) for n in range(9)), *(f"0/{n}" for n in range(8))]
    )


def test_a_marker_proves_nothing_about_a_topic_it_does_not_name(flow: Flow) -> None:
    other = f"{flow.source}-b"
    flow.broker.create_topic(other, 2)
    _written(flow, 5, 5, also={other: (5, 5)})
    checkpoint = _written(flow, 7, 7)
    manual_offsets = {TopicPartition(flow.source, partition): 7 for partition in (0, 1)}
    manual_offsets[TopicPartition(other, 0)] = 5
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, manual_offsets)
    _lose(flow, 1, topic=other)
    _refuses(flow, checkpoint, other, 7, 7, also={other: (5, 5)})
    assert len(flow.values()) == 24


def test_a_delivery_changed_meanwhile_by_another_run_is_noticed(flow: Flow) -> None:
    with running(flow) as runs:
        runs.batch(5, 5)
        # As read from the group after this run was cut off.
        staged = {TopicPartition("progress", 0): StagedBatch("query", 7, None, 0, 1, "0")}
        runs.offsets.learn(replace(runs.offsets.known, staged=staged))
        with pytest.raises(CheckpointError, match="delivery='staged'"):
            runs.batch(9, 9)
    assert len(flow.values()) == 10


def test_partitions_added_after_offsets_were_set_for_all(flow: Flow) -> None:
    checkpoint = _written(flow, 5, 5)
    manual_offsets = {TopicPartition(flow.source, 0): 5, TopicPartition(flow.source, 1): 5}
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, manual_offsets)
    flow.broker.add_partitions(flow.source, 3)
    flow.partitions = 3
    # The checkpoint's note tells which partitions there were.
    with running(flow, checkpoint=checkpoint) as runs:
        runs.batch(7, 7, 4)
        runs.written_once(7, 7, 4)


def test_an_old_checkpoint_proves_nothing(flow: Flow) -> None:
    checkpoint = Checkpoint(flow)
    with running(flow, checkpoint=checkpoint) as runs:
        runs.batch(5, 5)
        backup = dict(checkpoint)
        runs.batch(9, 9)
    _lose(flow, 1)
    checkpoint.clear()
    checkpoint.update(backup)
    _refuses(flow, checkpoint, "lie past the checkpoint's", 12, 12)
    assert len(flow.values()) == 18


def test_a_first_start_that_dies_committing_its_first_offsets(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(flow)
    commit = offsets.commit_offsets

    def dying(connections: Any, group: str, member: Any, *more: Any, **named: Any) -> Any:
        if member.instance_id != "spark-eos-0":
            _fail()
        return commit(connections, group, member, *more, **named)

    monkeypatch.setattr(group_offsets, "commit_offsets", dying)
    with (
        running(flow, max_members=2, checkpoint=checkpoint) as runs,
        pytest.raises(ConnectionError),
    ):
        runs.batch(5, 5)
    monkeypatch.undo()
    assert len(flow.committed()) == 1
    with running(flow, max_members=2, checkpoint=checkpoint) as runs:
        runs.batch(5, 5)
        runs.written_once(5, 5)


def test_records_deleted_while_being_read_are_reported(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    flow.produce(range(10), partition=0)
    with running(flow, fail_on_data_loss=False) as runs:
        remove(flow, flow.source, 0, 2)
        report = runs.batch(
            10,
            0,
            rows=lambda _partition, _offsets: range(6, 10),
            while_planned=lambda: remove(flow, flow.source, 0, 6),
        )
    assert report.lost == (
        LostRecords(flow.source, 0, 0, 2),
        LostRecords(flow.source, 0, 2, 6, certain=False),
    )
    assert sorted(flow.values()) == [f"0/{n}" for n in range(6, 10)]
    warnings = [r.getMessage() for r in caplog.records if "were deleted" in r.getMessage()]
    assert [
        f"{flow.source}-0 offsets {which} were deleted" in text
        for which, text in zip(("0 to 1", "2 to 5"), warnings, strict=True)
    ] == [True, True]
    assert "while the batch was read" in warnings[1]


def _commits_seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[int, int]]]:
    """Commits of drivers from now on: the member's instance id, and offsets by partition."""
    commit = offsets.commit_offsets
    committed: list[tuple[str, dict[int, int]]] = []

    def noting(
        connections: Any,
        group: str,
        member: Any,
        offsets: Mapping[Any, int],
        *more: Any,
        **named: Any,
    ) -> Any:
        committed.append((member.instance_id, {p: offset for (_, p), offset in offsets.items()}))
        return commit(connections, group, member, offsets, *more, **named)

    monkeypatch.setattr(group_offsets, "commit_offsets", noting)
    return committed


def test_offsets_are_renewed_between_batches_and_within(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = _commits_seen(monkeypatch)

    def committed() -> list[dict[int, int]]:
        return [offsets for _, offsets in seen]

    with running(flow) as runs:
        runs.batch(5, 5)
        # At the start, before anything is written, and once more when all are known; what tasks
        # have committed needs no settling.
        assert committed() == [{0: 0, 1: 0}] * 2
        runs.batch(9, 5)
        assert len(seen) == 2
        monkeypatch.setattr(group_offsets, "RENEWED_AFTER", 0.1)
        until(lambda: {0: 9, 1: 5} in committed(), lambda: f"a renewal: {seen}")
        monkeypatch.setattr(group_offsets, "RENEWED_AFTER", 3600.0)
        runs.batch(12, 5)
        monkeypatch.setattr(group_offsets, "RENEWED_AFTER", 0.0)
        seen.clear()

        # While a batch is in hand, only with its end: tasks may commit meanwhile.
        runs.batch(14, 5, while_planned=lambda: time.sleep(2.5))
        assert {0: 14, 1: 5} in committed()
        assert {0: 12, 1: 5} not in committed()[1:]
        monkeypatch.setattr(group_offsets, "RENEWED_AFTER", 3600.0)
        # Waits for a renewal that is under way, which would stand for the one at the end.
        runs.batch(15, 5)
        seen.clear()
    # At the clean end.
    assert committed() == [{0: 15, 1: 5}]


def test_after_a_batch_that_failed_nothing_is_renewed(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        # Its tasks may still commit, and a renewal must not come after them.
        raise RuntimeError("the batch")

    seen = _commits_seen(monkeypatch)
    with running(flow) as runs:
        runs.batch(5, 5)
        seen.clear()
        with pytest.raises(RuntimeError, match="the batch"):
            runs.batch(9, 5, while_planned=fail)
    assert seen == []


def test_a_renewal_waits_for_the_last_batchs_transactions_to_end(
    proxied_flow: Flow, proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = _commits_seen(monkeypatch)
    with running(proxied_flow) as runs:
        runs.batch(5, 5)
        seen.clear()
        # Brokers end transactions in their own time, which they can't be made to take.
        rule = proxy.on(OffsetFetchRequest, Rewrite(unstable), times=2)
    assert len(rule.hits) == 2
    assert [offsets for _, offsets in seen] == [{0: 5, 1: 5}]


def test_offsets_are_renewed_where_no_batch_is_run(
    flow: Flow, spark_eos_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow.produce(range(10))
    run_available(spark_eos_session, flow)
    before = _known(flow)
    committed = _commits_seen(monkeypatch)
    # There is nothing to read, so Spark runs no batch.
    assert run_available(spark_eos_session, flow) == []
    assert committed == [("spark-eos-renewal", {0: 5, 1: 5})]
    assert _known(flow) == before
    monkeypatch.setattr(group_offsets, "RENEWED_AFTER", 0.2)
    sink = ExactlyOnceSink(**flow.options())
    frame = sink.read(spark_eos_session, subscribe=flow.source)
    query = sink.write(frame.select("source", "value")).start()
    try:
        committed.clear()
        until(lambda: committed, lambda: "a renewal")
        # A run's members are left alone.
        flow.produce(range(10, 20))
        until(lambda: flow.committed() == {0: 10, 1: 10}, lambda: "the batch")
        (member,) = flow.members()
        committed.clear()
        time.sleep(1)
        assert flow.members() == [member]
        assert {who for who, _ in committed} <= {"spark-eos-0"}
    finally:
        query.stop()
        sink.close()


@pytest.mark.slow
def test_offsets_of_idle_partitions_outlive_their_retention(tmp_path: Path) -> None:
    # The brokers' shortest retention is a minute, from each offset's own commit.
    properties = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "500"}
    with EmbeddedKafka(properties=properties) as broker:
        flow = Flow(broker, str(tmp_path / "c"), str(tmp_path / "w"))
        bystander = Flow(broker, str(tmp_path / "c2"), str(tmp_path / "w2"))
        with running(flow) as runs:
            runs.batch(5, 5)
            # From here on partition 1 is idle, and soon both are.
            runs.batch(9, 5)
            elsewhere = {TopicPartition(bystander.source, 0): 1}
            groups.set_offsets(flow.bootstrap_servers, bystander.group_id, elsewhere)
            until(lambda: not bystander.committed(), lambda: "the other group's offset", 150)
            assert flow.committed() == {0: 9, 1: 5}
        # The members have left: from here on nothing but their age protects the offsets. The
        # brokers look several times.
        time.sleep(3)
        assert flow.committed() == {0: 9, 1: 5}


@pytest.mark.slow
def test_an_offset_that_was_set_hides_no_other_lost_offset(flow: Flow) -> None:
    other = f"{flow.source}-b"
    flow.broker.create_topic(other, 1)
    with running(flow) as runs:
        runs.batch(5, 5, also={other: (5,)})
    # An offset that was set has no metadata: of the topic's partitions only the other topic tells.
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, {TopicPartition(flow.source, 0): 5})
    _lose(flow, 1)
    assert _known(flow).partitions == {(other, 0)}
    # As after the checkpoint was deleted: partition 1 would be written from its beginning.
    with (
        running(flow) as runs,
        pytest.raises(OffsetsLostError, match=f"{flow.source}-1, although it had one before"),
    ):
        runs.batch(9, 9, also={other: (9,)})
    assert flow.committed() == {0: 5}
    assert len(flow.values()) == 15
