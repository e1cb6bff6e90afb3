"""The mirrored delivery's driver and tasks, with the source in another cluster; without Spark."""

import contextlib
from collections.abc import Callable

import kafka
import pytest
from kafka import KafkaAdminClient

from spark_eos._cli.mirrored_progress import set_progress
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.offset_metadata import CommittedOffset, KnownPartitions
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import (
    CheckpointError,
    ConfigurationError,
    OffsetGapError,
    OffsetsLostError,
    RecordsLostError,
)
from spark_eos.testing import EmbeddedKafka
from support.groups import delete_offsets, set_offsets
from support.members import deadline
from support.mirroring import MirroredFlow, mirrored_run
from support.runs import Checkpoint, running, written_once


def _written(flow: MirroredFlow) -> Checkpoint:
    """The checkpoint of a run that has written a batch."""
    with mirrored_run(flow) as runs:
        runs.batch(10, 20)
    return runs.checkpoint


def _refuses(
    flow: MirroredFlow, error: type[Exception], match: str, checkpoint: Checkpoint | None = None
) -> None:
    with mirrored_run(flow, checkpoint=checkpoint) as runs, pytest.raises(error, match=match):
        runs.batch(11, 21)


def test_batches_and_restarts(mirrored_flow: MirroredFlow) -> None:
    flow = mirrored_flow
    with mirrored_run(flow) as runs:
        report = runs.batch(10, 20)
        assert report.delivery == "mirrored"
        assert [(p.topic, p.partition, p.end) for p in report.partitions] == [
            (flow.source, 0, 10),
            (flow.source, 1, 20),
        ]
        runs.batch(10, 30, without_output=4)
        checkpoint = runs.checkpoint
    assert flow.committed() == {0: 10, 1: 30}
    with mirrored_run(flow, checkpoint=checkpoint) as runs:
        runs.batch(15, 30)
    assert flow.committed() == {0: 15, 1: 30}
    expected = [*(f"0/{n}" for n in range(15)), *(f"1/{n}" for n in range(26))]
    assert sorted(flow.values()) == sorted(expected)
    assert flow.open_transactions() == []


def test_a_lost_checkpoint_is_survived(mirrored_flow: MirroredFlow) -> None:
    with mirrored_run(mirrored_flow) as runs:
        runs.batch(10, 20)
    with mirrored_run(mirrored_flow) as runs:
        # From the start of the topic: what is written already is skipped.
        report = runs.batch(12, 20)
    assert (report.rows_written, report.rows_skipped) == (2, 30)
    written_once(mirrored_flow, 12, 20)


@pytest.mark.slow
def test_pairs_of_a_run_that_came_and_went_are_kept(mirrored_flow: MirroredFlow) -> None:
    flow = mirrored_flow
    with mirrored_run(flow) as first:
        first.batch(5, 5)
        first.delay_heartbeats()
        flow.other.add_partitions(flow.source, 3)
        with mirrored_run(flow) as second:
            second.batch(6, 6, 8)
        first.notice_the_group()
        first.batch(7, 7)
        # Its own checkpoint has not seen the new partition before.
        first.batch(7, 7, 9)
    written_once(flow, 7, 7, 9)
    assert sorted(flow.progress_offsets()) == [0, 1, 2]


def test_partitions_are_added_and_so_are_progress_partitions(
    mirrored_flow: MirroredFlow,
) -> None:
    flow = mirrored_flow
    with mirrored_run(flow) as runs:
        runs.batch(5, 5)
        flow.other.add_partitions(flow.source, 5)
        runs.batch(5, 6, 7, 8, 9)
        assert sorted(flow.progress_offsets()) == [0, 1, 2, 3, 4]
        runs.batch(6, 6, 8, 8, 9)
    written_once(flow, 6, 6, 8, 8, 9)


def test_a_topic_of_the_same_name_may_be_the_target(mirrored_flow: MirroredFlow) -> None:
    flow = mirrored_flow
    flow.broker.create_topic(flow.source, flow.partitions)
    with mirrored_run(flow, topic=flow.source) as runs:
        runs.batch(3, 3)
    assert len(flow.values(flow.source)) == 6


# Lost, moved, of something else --------------------------------------------------------------


def _delete(flow: MirroredFlow, *numbers: int) -> None:
    delete_offsets(
        flow.bootstrap_servers, flow.group_id, [TopicPartition(flow.progress, n) for n in numbers]
    )


def test_a_lost_offset_is_restored_from_the_checkpoint(mirrored_flow: MirroredFlow) -> None:
    flow = mirrored_flow
    checkpoint = _written(flow)
    _delete(flow, 1)
    with mirrored_run(flow, checkpoint=checkpoint) as again:
        again.batch(11, 21)
    written_once(flow, 11, 21)


def test_a_lost_offset_is_refused_without_the_checkpoint(mirrored_flow: MirroredFlow) -> None:
    flow = mirrored_flow
    _written(flow)
    _delete(flow, 1)
    _refuses(flow, OffsetsLostError, rf"not known whether {flow.source}-1 is new")
    assert len(flow.values()) == 30


def test_a_recreated_source_is_refused(mirrored_flow: MirroredFlow) -> None:
    flow = mirrored_flow
    with mirrored_run(flow) as runs:
        runs.batch(10, 20)
        flow.recreate(flow.source)
        with pytest.raises(OffsetsLostError, match=f"'{flow.source}' was deleted and recreated"):
            runs.batch(11, 21)
    # Also without the checkpoint, which knows its id: the offsets' texts do.
    _refuses(flow, OffsetsLostError, f"'{flow.source}' was deleted and recreated")
    assert len(flow.values()) == 30


def test_a_source_recreated_while_tasks_write_is_reported(mirrored_flow: MirroredFlow) -> None:
    flow = mirrored_flow
    with (
        mirrored_run(flow) as runs,
        pytest.raises(OffsetsLostError, match=f"'{flow.source}' was deleted and recreated"),
    ):
        runs.batch(10, 20, while_planned=lambda: flow.recreate(flow.source))


def test_a_recreated_progress_topic_is_refused(mirrored_flow: MirroredFlow) -> None:
    flow = mirrored_flow
    checkpoint = _written(flow)
    flow.recreate(flow.progress)
    _refuses(flow, OffsetsLostError, f"'{flow.progress}' was deleted and recreated", checkpoint)
    assert len(flow.values()) == 30


def test_a_gap_is_refused(mirrored_flow: MirroredFlow) -> None:
    flow = mirrored_flow
    checkpoint = _written(flow)
    _set(flow, 0, 4)
    command = f"--group-id {flow.group_id} --set {flow.source}:0=10"
    _refuses(flow, OffsetGapError, f"{flow.source}-0 .*offsets 4 to 9.*{command}", checkpoint)


def _set(flow: MirroredFlow, number: int, offset: int, text: str | None = None) -> None:
    partition = TopicPartition(flow.progress, number)
    texts = {partition: flow.progress_offsets()[number].metadata if text is None else text}
    set_offsets(flow.bootstrap_servers, flow.group_id, {partition: offset}, texts)


def test_another_cluster_is_refused(mirrored_flow: MirroredFlow) -> None:
    flow = mirrored_flow
    checkpoint = _written(flow)
    text = flow.progress_offsets()[0].metadata
    partition = TopicPartition(flow.progress, 0)
    source = KnownPartitions.of({partition: CommittedOffset(10, text)}).sources[partition]
    _set(flow, 0, 10, text.replace(source.cluster, "elsewhere"))
    for left in (checkpoint, None):
        _refuses(flow, ConfigurationError, "of cluster 'elsewhere', but source_kafka", left)


def test_the_source_cluster_must_not_be_the_target_cluster(
    new_mirrored_flow: Callable[..., MirroredFlow], embedded_kafka: EmbeddedKafka
) -> None:
    # As a relay from a topic to itself, it would copy its own rows for ever.
    flow = new_mirrored_flow(other=embedded_kafka)
    with (
        mirrored_run(flow, topic=flow.source) as runs,
        pytest.raises(ConfigurationError, match="leave source_kafka out"),
    ):
        runs.batch(3, 3)
    assert flow.values(flow.source) == []


def test_another_progress_topic_is_refused(
    mirrored_flow: MirroredFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = mirrored_flow
    _written(flow)
    before = flow.progress
    monkeypatch.setattr(MirroredFlow, "progress", f"{before}-2")
    _refuses(flow, ConfigurationError, f"set progress_topic='{before}'")


def test_progress_in_two_topics_of_one_name_is_refused(mirrored_flow: MirroredFlow) -> None:
    flow = mirrored_flow
    _written(flow)
    flow.recreate(flow.source, 4)
    # By an operator, who leaves the other two at offsets of the deleted topic.
    new = {TopicPartition(flow.source, 2): 0, TopicPartition(flow.source, 3): 0}
    with (
        flow.connections() as connections,
        contextlib.closing(Connections(ClientSettings(flow.source_kafka))) as east,
    ):
        set_progress(connections, flow.group_id, new, deadline(), source_connections=east)
    with (
        mirrored_run(flow) as again,
        pytest.raises(OffsetsLostError, match=f"'{flow.source}' was deleted and recreated"),
    ):
        again.batch(11, 21, 3, 3)
    assert len(flow.values()) == 30


def test_a_direct_group_is_not_mirrored(
    mirrored_flow: MirroredFlow, embedded_kafka: EmbeddedKafka
) -> None:
    flow = mirrored_flow
    embedded_kafka.create_topic(flow.source, flow.partitions)
    with running(flow) as direct:
        direct.batch(10, 20)
    for checkpoint in (direct.checkpoint, Checkpoint(flow)):
        _refuses(flow, CheckpointError, "delivery='direct', and no source_kafka", checkpoint)
    assert len(flow.values()) == 30


def test_a_query_keeps_its_delivery(
    mirrored_flow: MirroredFlow, embedded_kafka: EmbeddedKafka
) -> None:
    flow = mirrored_flow
    checkpoint = _written(flow)
    embedded_kafka.create_topic(flow.source, flow.partitions)
    for left in (checkpoint, Checkpoint(flow)):
        with (
            running(flow, checkpoint=left) as direct,
            pytest.raises(CheckpointError, match="delivery='mirrored', with source_kafka"),
        ):
            direct.batch(11, 21)
    assert len(flow.values()) == 30


def test_offsets_without_text_are_refused_without_the_checkpoint(
    mirrored_flow: MirroredFlow,
) -> None:
    flow = mirrored_flow
    checkpoint = _written(flow)
    for number, offset in ((0, 10), (1, 20)):
        _set(flow, number, offset, text="")
    _refuses(flow, OffsetsLostError, "2 progress partitions whose source partitions are no longer")
    with mirrored_run(flow, checkpoint=checkpoint) as again:
        again.batch(11, 21)
    written_once(flow, 11, 21)


def _delete_records(flow: MirroredFlow, partition: int, *, before: int) -> None:
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=flow.source_servers)) as admin:
        admin.delete_records({kafka.TopicPartition(flow.source, partition): before})


def test_deleted_records_are_reported(mirrored_flow: MirroredFlow) -> None:
    flow = mirrored_flow
    flow.produce(range(12), partition=0)
    with mirrored_run(flow) as runs:
        runs.batch(4, 0)
        _delete_records(flow, 0, before=7)
        lost = rf"{flow.source}-0 offsets 4 to 6.*--set {flow.source}:0=7"
        with pytest.raises(RecordsLostError, match=lost):
            runs.batch(12, 0)
    checkpoint = runs.checkpoint
    with mirrored_run(flow, checkpoint=checkpoint, fail_on_data_loss=False) as runs:
        report = runs.batch(12, 0, rows=lambda _, offsets: [o for o in offsets if o >= 7])
        assert [str(lost) for lost in report.lost] == [f"{flow.source}-0 offsets 4 to 6"]
        assert flow.committed() == {0: 12, 1: 0}
        # One that is added begins at its first record, as all do.
        flow.other.add_partitions(flow.source, 3)
        flow.produce(range(5), partition=2)
        _delete_records(flow, 2, before=3)
        report = runs.batch(12, 0, 5, rows=lambda _, offsets: [o for o in offsets if o >= 3])
    assert [str(lost) for lost in report.lost] == [f"{flow.source}-2 offsets 0 to 2"]
    assert flow.committed() == {0: 12, 1: 0, 2: 5}


def test_a_topic_that_comes_back_goes_on_where_it_was(mirrored_flow: MirroredFlow) -> None:
    flow = mirrored_flow
    other = f"{flow.source}-2"
    flow.other.create_topic(other, 1)
    with mirrored_run(flow) as runs:
        runs.batch(3, 3, also={other: (5,)})
    # Without it, and without the checkpoint; its progress stays.
    with mirrored_run(flow) as runs:
        runs.batch(4, 4)
        offsets = {n: one.offset for n, one in flow.progress_offsets().items()}
        assert sorted(offsets.values()) == [4, 4, 5]
    with mirrored_run(flow) as runs:
        report = runs.batch(5, 5, also={other: (7,)})
    assert (report.rows_written, report.rows_skipped) == (4, 13)


def test_a_source_that_ends_below_what_was_read_ends_the_query(mirrored_flow: MirroredFlow) -> None:
    with mirrored_run(mirrored_flow, fail_on_data_loss=False) as runs:
        runs.batch(5, 5)
        words = f"{mirrored_flow.source}-0 .* ends at 3, and .* new records at offsets 3 to 4 "
        with pytest.raises(RecordsLostError, match=words):
            runs.batch(3, 9)
        runs.written_once(5, 5)
