"""Expired or deleted offsets are restored if the checkpoint proves them, and refused otherwise.

Deleting an offset leaves the group in the same state as expiry.
`test_offsets_of_idle_partitions_outlive_their_retention` waits for real expiry.
"""

import itertools
import time
from collections.abc import Callable, Mapping
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
from spark_eos.errors import CheckpointError, OffsetsLostError, RecordsLostError, WriteError
from spark_eos.testing import EmbeddedKafka
from support import groups
from support.flow import Flow
from support.planting import remove
from support.proxied_worker import unstable
from support.proxy import KafkaProxy
from support.proxy_faults import Rewrite
from support.queries import run_available, until
from support.runs import Query, running, values_up_to, written_once


def _known(flow: Flow) -> KnownPartitions:
    return KnownPartitions.of(flow.group_commits())


def _fail() -> None:
    raise ConnectionError("the driver dies here")


def _other_topic(flow: Flow, partitions: int = 1) -> str:
    other = f"{flow.source}-b"
    flow.broker.create_topic(other, partitions)
    return other


@pytest.mark.slow
def test_without_offsets_and_checkpoint_a_query_is_new(direct: Query) -> None:
    for _ in range(2):
        direct.checkpoint = None
        direct.writes(5, 5)
        direct.loses_all()
    assert sorted(direct.flow.values()) == sorted(2 * values_up_to(5, 5))


@pytest.mark.slow
def test_a_batch_that_was_begun_proves_nothing(direct: Query) -> None:
    direct.writes(5, 5)
    with direct.run() as runs, pytest.raises(ConnectionError):
        runs.batch(9, 9, while_planned=_fail)
    direct.loses_all()
    for _ in range(2):
        begun = ["batch 1, from 5 to 8, was begun", "everything below 5 is written"]
        direct.refuses(OffsetsLostError, begun, 9, 9)
    # What the error advises.
    direct.sets({0: 5, 1: 5})
    direct.writes(9, 9)
    written_once(direct.flow, 9, 9)


def test_batch_0_half_committed_and_its_offsets_lost(direct: Query) -> None:
    with direct.run() as runs, pytest.raises(WriteError):
        # In each partition, the first rows are committed before a row comes out of order.
        runs.batch(9, 9, rows=lambda _, offsets: [*offsets, 0])
    direct.loses_all()
    direct.refuses(OffsetsLostError, ["batch 0 was begun before"], 9, 9)


def test_a_first_start_that_failed_before_writing_continues(direct: Query) -> None:
    with (
        direct.run(topic="not-there", max_block_ms=1_000) as runs,
        pytest.raises(Exception, match="not-there"),
    ):
        runs.batch(5, 5)
    direct.writes(5, 5)
    written_once(direct.flow, 5, 5)


def test_a_partition_known_only_from_the_marker_is_not_new(direct: Query) -> None:
    flow = direct.flow
    direct.writes(5, 5)
    flow.add_partitions(3)
    # Fails after partition 2 is written; the batch is begun, and the log has no start of it.
    with direct.run() as runs, pytest.raises(WriteError):
        runs.batch(7, 7, 4, rows=lambda p, offsets: [*offsets, 0] if p == 1 else offsets)
    assert sum(value.startswith("2/") for value in flow.values()) == 4
    direct.loses_all()
    # The operator sets what the errors have named, without the texts that name others.
    direct.sets({0: 7, 1: 7})
    direct.refuses(OffsetsLostError, [f"{flow.source}-2, although the query has read it"], 7, 7, 4)


@pytest.mark.slow
def test_a_batch_without_any_partition(direct: Query) -> None:
    with direct.run() as runs:
        runs.batch(5, 5)
        assert runs.batch().rows_written == 0
    assert direct.writes().rows_written == 0


def test_a_topic_taken_out_expired_and_put_back(direct: Query) -> None:
    other = _other_topic(direct.flow)
    direct.writes(5, 5, also={other: (5,)})
    direct.writes(9, 9)
    direct.loses(0, topic=other)
    direct.refuses(
        OffsetsLostError, [f"{other}-0, although it had one before"], 9, 9, also={other: (9,)}
    )


@pytest.mark.slow
def test_a_topic_taken_out_and_put_back_goes_on(direct: Query) -> None:
    other = _other_topic(direct.flow)
    direct.writes(5, 5, also={other: (5,)})
    direct.checkpoint = None
    direct.writes(9, 9)
    direct.checkpoint = None
    assert direct.writes(9, 9, also={other: (8,)}).rows_written == 3
    # Its rows have the same values as the rows of partition 0.
    assert sorted(direct.flow.values()) == sorted([*values_up_to(9, 9), *values_up_to(8)])


def test_a_marker_proves_nothing_about_a_topic_it_does_not_name(direct: Query) -> None:
    other = _other_topic(direct.flow, 2)
    direct.writes(5, 5, also={other: (5, 5)})
    direct.checkpoint = None
    direct.writes(7, 7)
    direct.sets({0: 7, 1: 7})
    direct.sets({0: 5}, topic=other)
    direct.loses(1, topic=other)
    direct.refuses(OffsetsLostError, [f"{other}-1"], 7, 7, also={other: (5, 5)})


@pytest.mark.slow
def test_an_offset_that_was_set_hides_no_other_lost_offset(direct: Query) -> None:
    other = _other_topic(direct.flow)
    direct.writes(5, 5, also={other: (5,)})
    # An offset that was set has no metadata: only the other topic's texts still name the topic.
    direct.sets({0: 5})
    direct.loses(1)
    assert _known(direct.flow).partitions == {(other, 0)}
    # As after the checkpoint was deleted: partition 1 would be written from its beginning.
    direct.checkpoint = None
    direct.refuses(
        OffsetsLostError,
        [f"{direct.held_by}-1, although it had one before"],
        9,
        9,
        also={other: (9,)},
    )
    assert direct.flow.committed() == {0: 5}


def test_a_delivery_changed_meanwhile_by_another_run_is_noticed(direct: Query) -> None:
    with direct.run() as runs:
        runs.batch(5, 5)
        # As read from the group after this run was cut off.
        staged = {TopicPartition("progress", 0): StagedBatch("query", 7, None, 0, 1, "0")}
        runs.offsets.learn(replace(runs.offsets.known, staged=staged))
        runs.refuses(CheckpointError, ["delivery='staged'"], 9, 9)


def test_partitions_added_after_offsets_were_set_for_all(direct: Query) -> None:
    direct.writes(5, 5)
    direct.sets({0: 5, 1: 5})
    direct.flow.add_partitions(3)
    # The checkpoint's note tells which partitions there were.
    direct.writes(7, 7, 4)
    written_once(direct.flow, 7, 7, 4)


def test_an_old_checkpoint_proves_nothing(direct: Query) -> None:
    direct.writes(5, 5)
    with direct.keeping_checkpoint():
        direct.writes(9, 9)
    direct.loses(1)
    direct.refuses(OffsetsLostError, ["lie past the checkpoint's"], 12, 12)


def test_a_first_start_that_dies_committing_its_first_offsets(
    direct: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = offsets.commit_offsets

    def dying(
        connections: Any, group: str, member: Any, wanted: Any, *more: Any, **named: Any
    ) -> Any:
        first = dict(itertools.islice(wanted.items(), 1))
        commit(connections, group, member, first, *more, **named)
        _fail()

    monkeypatch.setattr(group_offsets, "commit_offsets", dying)
    with direct.run() as runs, pytest.raises(ConnectionError):
        runs.batch(5, 5)
    monkeypatch.undo()
    assert len(direct.flow.committed()) == 1
    direct.writes(5, 5)
    written_once(direct.flow, 5, 5)


@pytest.mark.parametrize(
    ("delivery", "how_to_set"),
    [("direct", "--topic {}:0 --to-offset 7"), ("mirrored", "--set {}:0=7")],
)
def test_deleted_records_are_reported(
    query_of: Callable[[str], Query], delivery: str, how_to_set: str
) -> None:
    query = query_of(delivery)
    flow = query.flow

    def kept(partition: int, offsets: range) -> list[int]:
        return [offset for offset in offsets if offset >= {0: 7, 2: 3}[partition]]

    flow.produce(range(12), partition=0)
    with query.run() as runs:
        runs.batch(4, 0)
        remove(flow, flow.source, 0, 7)
        names = [f"{flow.source}-0 offsets 4 to 6", how_to_set.format(flow.source)]
        runs.refuses(RecordsLostError, names, 12, 0)
    with query.run(fail_on_data_loss=False) as runs:
        report = runs.batch(12, 0, rows=kept)
        assert [str(lost) for lost in report.lost] == names[:1]
        assert flow.committed() == {0: 12, 1: 0}
    # One that is added begins at its first record, as all do.
    flow.add_partitions(3)
    flow.produce(range(5), partition=2)
    remove(flow, flow.source, 2, 3)
    names = [f"{flow.source}-2 offsets 0 to 2"]
    query.refuses(RecordsLostError, names, 12, 0, 5)
    with query.run(fail_on_data_loss=False) as runs:
        report = runs.batch(12, 0, 5, rows=kept)
    assert [str(lost) for lost in report.lost] == names
    assert flow.committed() == {0: 12, 1: 0, 2: 5}


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


@pytest.mark.slow
def test_offsets_are_renewed_between_batches_and_within(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = _commits_seen(monkeypatch)

    def committed() -> list[dict[int, int]]:
        return [offsets for _, offsets in seen]

    with running(flow) as runs:
        runs.batch(5, 5)
        # A start commits the offsets before anything is written, and again once all are known;
        # offsets that tasks have committed need no further commit.
        assert committed() == [{0: 0, 1: 0}] * 2
        runs.batch(9, 5)
        assert len(seen) == 2
        monkeypatch.setattr(group_offsets, "RENEWED_AFTER", 0.1)
        until(lambda: {0: 9, 1: 5} in committed(), lambda: f"a renewal: {seen}")
        monkeypatch.setattr(group_offsets, "RENEWED_AFTER", 3600.0)
        runs.batch(12, 5)
        monkeypatch.setattr(group_offsets, "RENEWED_AFTER", 0.0)
        seen.clear()

        # During a batch, offsets are renewed only with its end, because tasks may be committing.
        runs.batch(14, 5, while_planned=lambda: time.sleep(2.5))
        assert {0: 14, 1: 5} in committed()
        assert {0: 12, 1: 5} not in committed()[1:]
        monkeypatch.setattr(group_offsets, "RENEWED_AFTER", 3600.0)
        # Waits for a renewal in progress, which would be mistaken for the one at the end.
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


@pytest.mark.slow
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
