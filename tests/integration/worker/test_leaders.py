"""A broker that does not lead a partition any more, or not yet; without Spark."""

from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from spark_eos import LostRecords
from spark_eos._batch.partition_pairs import PartitionPairs
from spark_eos._batch.plan import BatchRange
from spark_eos._driver.data_loss_check import DataLossCheck
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import DeadlineExceededError
from support.flow import Flow
from support.members import writer_settings
from support.planting import remove
from support.proxy import KafkaProxy
from support.proxy_faults import Answer, Rewrite
from support.runs import Checkpoint, running
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


@pytest.mark.proves("broker-away")
def test_rows_are_sent_again_until_their_partition_has_a_leader(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    with running(proxied_flow) as runs:
        refused = proxy.on(ProduceRequest, Answer(_not_leader), times=10)
        report = runs.batch(20, 20)
        assert len(refused.hits) == 10
        assert (report.attempts, report.rows_written) == (1, 40)
        runs.written_once(20, 20)


@pytest.mark.proves("broker-away")
@pytest.mark.slow
def test_rows_without_a_leader_for_too_long_are_written_by_a_further_job(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    briefly: dict[str, Any] = {"transaction_timeout_ms": 5_000, "max_transaction_ms": 4_000}
    with running(proxied_flow, **briefly) as runs:
        proxy.on(ProduceRequest, Answer(_not_leader), times=None)
        report = runs.batch(20, 20, in_round=2, while_planned=proxy.reset)
        assert (report.attempts, report.rows_written) == (2, 40)
        runs.written_once(20, 20)


# Source partitions, whose first offsets tell what was deleted ------------------------------------


def _leaderless(_request: Any, answer: Any) -> None:
    """As a broker with a cluster of several answers once the only replica is down."""
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.partition_index == 0:
                partition.leader_id = -1


def _unanswered(_request: Any, answer: Any) -> None:
    for topic in answer.topics:
        topic.partitions = [p for p in topic.partitions if p.partition_index != 0]


def _of(topic: str) -> Callable[[Any], bool]:
    return lambda request: topic in {one.name for one in request.topics or ()}


@pytest.mark.proves("records-deleted")
@pytest.mark.parametrize(
    ("request_class", "change"), [(MetadataRequest, _leaderless), (ListOffsetsRequest, _unanswered)]
)
def test_a_source_partition_is_asked_until_it_has_answered(
    request_class: type, change: Callable[[Any, Any], None], proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    flow = proxied_flow
    flow.produce(range(20), partition=0)
    with running(flow, fail_on_data_loss=False) as runs:
        remove(flow, flow.source, 0, 3)
        rule = proxy.on(request_class, Rewrite(change), times=5, where=_of(flow.source))
        assert runs.batch(10, 10).lost == (LostRecords(flow.source, 0, 0, 3),)
        assert len(rule.hits) == 5
        remove(flow, flow.source, 0, 14)
        assert runs.batch(20, 20).lost == (LostRecords(flow.source, 0, 10, 14),)


@pytest.mark.proves("records-deleted")
@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_source_partition_without_a_leader_for_too_long_is_named(
    proxied_flow: Flow, proxy: KafkaProxy, *, fail_on_data_loss: bool
) -> None:
    flow = proxied_flow
    settings = changed(
        writer_settings(flow), group_timeout_ms=1_000, fail_on_data_loss=fail_on_data_loss
    )
    first, second = (TopicPartition(flow.source, p) for p in range(2))
    committed = {first: 5, second: 5}
    proxy.on(MetadataRequest, Rewrite(_leaderless), times=None, where=_of(flow.source))
    with flow.connections() as connections:
        check = DataLossCheck(connections, settings)
        # What has no range need not answer.
        ranges = BatchRange(1, committed, {first: 5, second: 9})
        assert check.lost(ranges, committed, PartitionPairs()) == ()
        ranges = BatchRange(2, committed, {first: 9, second: 9})
        with pytest.raises(DeadlineExceededError, match=rf"leader has answered for {first} "):
            check.lost(ranges, committed, PartitionPairs())


def test_what_is_left_to_write_is_counted_once_all_partitions_have_answered(
    proxied_flow: Flow, proxy: KafkaProxy, caplog: pytest.LogCaptureFixture
) -> None:
    flow = proxied_flow
    flow.produce(range(20), partition=0)
    with running(flow) as runs:
        runs.batch(10, 0)
    another = Checkpoint(flow)
    another["metadata"] = '{"id": "another"}'
    with running(flow, checkpoint=another) as runs:
        proxy.on(MetadataRequest, Rewrite(_leaderless), times=5, where=_of(flow.source))
        runs.batch(20, 0)
    assert "up to 10 source records are left to write, and up to 10 before them" in caplog.text
