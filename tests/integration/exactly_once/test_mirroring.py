"""The mirrored delivery's driver and tasks, with the source in another cluster; without Spark."""

import contextlib
from collections.abc import Callable

import pytest

from spark_eos._cli.mirrored_progress import set_progress
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import CheckpointError, ConfigurationError, OffsetsLostError, RecordsLostError
from spark_eos.testing import EmbeddedKafka
from support.members import deadline
from support.mirroring import MirroredFlow, mirrored_run
from support.runs import Query, direct_query, written_once


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
        flow.add_partitions(5)
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


def test_the_source_cluster_must_not_be_the_target_cluster(
    new_mirrored_flow: Callable[..., MirroredFlow], embedded_kafka: EmbeddedKafka
) -> None:
    # As a relay from a topic to itself, it would copy its own rows for ever.
    flow = new_mirrored_flow(other=embedded_kafka)
    with mirrored_run(flow, topic=flow.source) as runs:
        runs.refuses(ConfigurationError, ["leave source_kafka out"], 3, 3)
    assert flow.values(flow.source) == []


def test_a_source_recreated_while_tasks_write_is_reported(mirrored: Query) -> None:
    """Rows may be written: a progress partition's offset is accepted whatever its source is."""
    source = mirrored.flow.source
    with mirrored.run() as runs, pytest.raises(OffsetsLostError) as lost:
        runs.batch(10, 20, while_planned=lambda: mirrored.flow.recreate(source))
    assert f"'{source}' was deleted and recreated" in str(lost.value)


def test_another_progress_topic_is_refused(
    mirrored: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored.writes(10, 20)
    before = mirrored.held_by
    monkeypatch.setattr(MirroredFlow, "progress", f"{before}-2")
    mirrored.checkpoint = None
    mirrored.refuses(ConfigurationError, [f"set progress_topic='{before}'"], 11, 21)


def test_progress_in_two_topics_of_one_name_is_refused(mirrored: Query) -> None:
    flow = mirrored.flow
    mirrored.writes(10, 20)
    flow.recreate(flow.source, 4)
    # By an operator, who leaves the other two at offsets of the deleted topic.
    new = {TopicPartition(flow.source, 2): 0, TopicPartition(flow.source, 3): 0}
    with (
        flow.connections() as connections,
        contextlib.closing(Connections(ClientSettings(flow.source_kafka or {}))) as east,
    ):
        set_progress(connections, flow.group_id, new, deadline(), source_connections=east)
    mirrored.checkpoint = None
    recreated = f"'{flow.source}' was deleted and recreated"
    mirrored.refuses(OffsetsLostError, [recreated], 11, 21, 3, 3)


@pytest.mark.slow
@pytest.mark.parametrize("begun", ["direct", "mirrored"])
@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_query_keeps_its_delivery(
    mirrored: Query,
    embedded_kafka: EmbeddedKafka,
    begun: str,
    with_checkpoint: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    flow = mirrored.flow
    embedded_kafka.create_topic(flow.source, flow.partitions)
    queries = [direct_query(flow), mirrored]
    first, other = queries if begun == "direct" else reversed(queries)
    first.writes(10, 20)
    if with_checkpoint:
        other.checkpoint = first.checkpoint
    other.refuses(CheckpointError, [f"delivery='{begun}'", "source_kafka"], 11, 21)


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
        words = [f"{mirrored_flow.source}-0 ", " ends at 3", "offsets 3 to 4 "]
        runs.refuses(RecordsLostError, words, 3, 9)
