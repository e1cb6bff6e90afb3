"""A broker that no longer leads a partition, or does not lead it yet; without Spark."""

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from spark_eos import BatchReport, LostRecords
from spark_eos._delivery.data_loss_check import DataLossCheck
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.plan import BatchRange
from spark_eos._worker.sources import Sources
from spark_eos.errors import DeadlineExceededError
from spark_eos.testing import EmbeddedKafka, KafkaNode
from spark_eos.testing.broker_admin import TIMEOUT, admin_client
from support.flow import Flow
from support.members import writer_settings
from support.planting import remove
from support.proxy import KafkaProxy
from support.proxy_faults import Answer
from support.runs import Checkpoint, Runs, running
from support.sinks import changed

_NOT_LEADER = 6


def _not_leader(request: Any) -> Any:
    topic_answer = ProduceResponse.TopicProduceResponse
    return ProduceResponse(
        responses=[
            topic_answer(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    topic_answer.PartitionProduceResponse(
                        index=partition.index, error_code=_NOT_LEADER, base_offset=-1
                    )
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def test_rows_are_sent_again_until_their_partition_has_a_leader(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    with running(proxied_flow) as runs:
        refused = proxy.on(ProduceRequest, Answer(_not_leader), times=10)
        report = runs.batch(20, 20)
        assert len(refused.hits) == 10
        assert (report.attempts, report.rows_written) == (1, 40)
        runs.written_once(20, 20)


# Source partitions, whose first offsets tell what was deleted ------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(nodes=3) as kafka:
        yield kafka


def _create_topic_on(cluster: EmbeddedKafka, name: str, nodes: Collection[KafkaNode]) -> None:
    """Creates a topic with a partition on each of these nodes only."""
    topic = NewTopic(
        name,
        num_partitions=len(nodes),
        replica_assignment=[[node.id] for node in nodes],
        config={"min.insync.replicas": "1"},
    )
    admin = admin_client(cluster.bootstrap_servers)  # without a name it would be gone at once
    admin.create_topics([topic])[name].result(TIMEOUT)


@pytest.fixture
def spread(cluster: EmbeddedKafka, tmp_path: Path) -> Iterator[tuple[Flow, KafkaNode]]:
    """A flow with 20 records in source partition 0, and the only node with this partition."""
    first, second, _ = cluster.nodes
    flow = Flow(cluster, str(tmp_path / "checkpoint"), str(tmp_path / "workers"))
    for topic, places in ((flow.source, [second, first]), (flow.target, [first, first])):
        cluster.delete_topic(topic)
        _create_topic_on(cluster, topic, places)
    flow.produce(range(20), partition=0)
    yield flow, second
    if not second.is_running:
        second.start()


def _meanwhile(second: KafkaNode, runs: Runs, *ends: int) -> BatchReport:
    """Writes a batch that begins without the second node."""
    second.stop()
    with ThreadPoolExecutor() as pool:
        written = pool.submit(runs.batch, *ends)
        second.start()
        return written.result(60)


@pytest.mark.slow
def test_a_source_partition_is_asked_until_it_has_a_leader(
    spread: tuple[Flow, KafkaNode],
) -> None:
    flow, second = spread
    with running(flow, fail_on_data_loss=False) as runs:
        remove(flow, flow.source, 0, 3)
        assert _meanwhile(second, runs, 10, 10).lost == (LostRecords(flow.source, 0, 0, 3),)
        remove(flow, flow.source, 0, 14)
        assert runs.batch(20, 20).lost == (LostRecords(flow.source, 0, 10, 14),)


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
@pytest.mark.slow
def test_a_source_partition_too_long_without_a_leader_is_named(
    spread: tuple[Flow, KafkaNode], *, fail_on_data_loss: bool
) -> None:
    flow, second = spread
    settings = changed(
        writer_settings(flow), group_timeout_ms=1_000, fail_on_data_loss=fail_on_data_loss
    )
    led_by_second, led_by_first = (TopicPartition(flow.source, p) for p in range(2))
    committed = {led_by_second: 5, led_by_first: 5}
    second.stop()
    with flow.connections() as connections:
        check = DataLossCheck(connections, settings)
        # What has no range need not answer.
        some = BatchRange(1, committed, {led_by_second: 5, led_by_first: 9})
        assert check.lost(some, committed, Sources()) == ()
        all_ = BatchRange(2, committed, {led_by_second: 9, led_by_first: 9})
        with pytest.raises(DeadlineExceededError, match=f"has answered for {led_by_second} "):
            check.lost(all_, committed, Sources())


@pytest.mark.slow
def test_remaining_rows_are_counted_once_leaders_are_known(
    spread: tuple[Flow, KafkaNode], caplog: pytest.LogCaptureFixture
) -> None:
    flow, second = spread
    with running(flow) as runs:
        runs.batch(10, 0)
    another = Checkpoint(flow)
    another["metadata"] = '{"id": "another"}'
    with running(flow, checkpoint=another) as runs:
        _meanwhile(second, runs, 20, 0)
    assert "up to 10 source records are left to write, and up to 10 before them" in caplog.text
