"""A staged query's positions in its sources, published only for Kafka's tools."""

import json
import logging
import uuid

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from kafka.protocol.consumer import OffsetCommitRequest

from spark_eos._checkpoint.marker import STAGED, Marker
from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._checks.start import Start
from spark_eos._client.settings import ClientSettings
from spark_eos._delivery.staged_sources import StagedSources
from spark_eos._exactly_once.delivery import Batch
from spark_eos._kafka.cluster import topics as topics_of
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.offsets import all_group_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._sink.reader import Selection, starting_positions
from spark_eos._status.status import Status, ask_status
from spark_eos._worker.plan import BatchRange
from spark_eos.errors import RecordsLostError
from spark_eos.testing.broker_admin import admin_client
from support.flow import Flow
from support.members import deadline, writer_settings
from support.mirroring import MirroredFlow
from support.runs import Checkpoint
from support.sinks import changed
from support.staged_runs import Copies, StagedRuns, progress_topic, staged_run
from support.writing import sent_requests

_BUCKETS = 2


@pytest.fixture
def staged(flow: Flow) -> Flow:
    """A flow with a progress topic and source records."""
    flow.broker.create_topic(progress_topic(flow), _BUCKETS + 1)
    flow.produce(range(20))
    return flow


def _shown(flow: Flow) -> dict[TopicPartition, int]:
    """The group's offsets of the source, as Kafka's tools see them."""
    admin = admin_client(flow.bootstrap_servers)
    request = [ConsumerGroupTopicPartitions(flow.group_id)]
    found = admin.list_consumer_group_offsets(request)[flow.group_id].result(60)
    return {
        TopicPartition(one.topic, one.partition): one.offset
        for one in found.topic_partitions
        if one.topic == flow.source
    }


def _texts(flow: Flow) -> list[str]:
    """The offsets' texts; confluent_kafka's admin client adds bytes of other memory to them."""
    with flow.connections() as connections:
        found = all_group_offsets(connections, flow.group_id, deadline(), positions=True)
    return [one.metadata for (topic, _), one in found.items() if topic == flow.source]


def _status(flow: Flow) -> Status:
    client = ClientSettings({"bootstrap.servers": flow.bootstrap_servers})
    return ask_status(client, flow.group_id, "spark-eos", 60, "")


def _batches(runs: StagedRuns, count: int) -> None:
    for _ in range(count):
        runs.batch()


def test_the_lag_of_a_staged_query_is_shown(staged: Flow) -> None:
    with staged_run(staged) as runs:
        _batches(runs, 3)
        assert _shown(staged) == {(staged.source, 0): 2, (staged.source, 1): 2}
        for text in _texts(staged):
            says = json.loads(text)
            assert says["position"] == "for monitoring only"
            assert says["progress"] == progress_topic(staged)
        status = _status(staged)
        assert [one.lag for one in status.partitions] == [8, 8]
        assert status.lag == 16
        assert status.delivery == "staged"
        assert status.staged is not None
        runs.batch()
        assert _status(staged).lag == 14


def test_nothing_is_decided_by_positions(staged: Flow) -> None:
    """Positions affect neither what a start reads, nor the known partitions, nor the delivery."""
    with staged_run(staged) as runs:
        _batches(runs, 3)
        checkpoint, copies = runs.checkpoint, runs.copies
    assert len(_shown(staged)) == staged.partitions
    assert staged.committed() == {}
    with staged.connections() as connections:
        known = KnownPartitions.of(all_group_offsets(connections, staged.group_id, deadline()))
        assert {topic for topic, _ in known.partitions} == {progress_topic(staged)}
        assert known.set_by_others == frozenset()
        topics = topics_of(connections, [staged.source], deadline())
        partitions = {TopicPartition(staged.source, number) for number in range(staged.partitions)}
        selection = Selection({"subscribe": staged.source}, topics, partitions)
        starts = starting_positions(connections, staged.group_id, selection, "earliest", deadline())
    assert starts == {staged.source: {"0": -2, "1": -2}}
    with staged_run(staged, checkpoint=checkpoint, copies=copies) as runs:
        _batches(runs, 2)
        runs.written(*copies.rows)


def test_a_position_of_an_older_run_is_refused(staged: Flow) -> None:
    behind = BatchRange(
        0, {}, {TopicPartition(staged.source, 0): 0, TopicPartition(staged.source, 1): 0}
    )
    with staged_run(staged) as older:
        _batches(older, 2)
        with staged_run(staged, checkpoint=older.checkpoint, copies=older.copies) as newer:
            _batches(newer, 2)
            older.publish(behind)
            assert set(_shown(staged).values()) == {3}


def test_unpublished_positions_are_reported_once_and_end_nothing(
    staged: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_eos")
    nowhere = BatchRange(0, {}, {TopicPartition(f"nowhere-{staged.name}", 0): 5})
    with staged_run(staged, copies=Copies()) as runs:
        _batches(runs, 1)
        for _ in range(2):
            runs.publish(nowhere)
        _batches(runs, 1)
        assert caplog.text.count("positions can't be published") == 1
        assert "UNKNOWN_TOPIC_OR_PARTITION" in caplog.text
        runs.written(*runs.copies.rows)


def test_positions_that_have_not_moved_are_not_published_again(
    staged: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with staged_run(staged) as runs:
        _batches(runs, 1)
        sent = sent_requests(monkeypatch)
        counts = []
        for end in (5, 5, 6):
            runs.publish(BatchRange(0, {}, {TopicPartition(staged.source, 0): end}))
            counts.append(sum(one.api_key == OffsetCommitRequest.API_KEY for one in sent))
    assert counts == [1, 1, 2]


def test_a_source_in_another_cluster_is_checked_there(mirrored_flow: MirroredFlow) -> None:
    """And it has no positions here, since the topic is elsewhere."""
    flow = mirrored_flow
    flow.broker.create_topic(progress_topic(flow), _BUCKETS + 1)
    flow.produce(range(20))
    with staged_run(flow, source_client=ClientSettings(flow.source_kafka)) as runs:
        _batches(runs, 2)
        before = confluent_kafka.TopicPartition(flow.source, 0, 5)
        # Without a name it would be gone before it answers.
        admin = admin_client(flow.source_servers)
        admin.delete_records([before])[before].result(60)
        with pytest.raises(RecordsLostError, match=f"{flow.source}-0 offsets 1 to 1"):
            runs.batch()
        with flow.connections() as connections:
            found = all_group_offsets(connections, flow.group_id, deadline(), positions=True)
        assert {topic for topic, _ in found} == {progress_topic(flow)}


def test_a_source_in_another_cluster_may_have_the_progress_topics_name(
    mirrored_flow: MirroredFlow,
) -> None:
    flow = mirrored_flow
    flow.other.create_topic(flow.progress, 1)
    settings = changed(writer_settings(flow), source_client=ClientSettings(flow.source_kafka))
    log = OffsetLog(Checkpoint(flow))
    own = uuid.uuid4()
    log.markers.write(Marker(flow.group_id, {flow.progress: own}, STAGED))
    with Start(settings) as start:
        sources = StagedSources(start.source, settings, flow.progress, lambda _: set())
        for name in (flow.progress, flow.source):
            read = BatchRange(0, {}, {TopicPartition(name, 0): 0})
            sources._check_topics(Batch(0, None, log), [read])
        start.close()
    ids = log.markers.read().topic_ids
    assert ids[flow.progress] == own
    assert flow.source in ids
