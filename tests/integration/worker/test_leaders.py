"""A broker that does not lead the target partition any more, or not yet; without Spark."""

from typing import Any

import pytest
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from support.flow import Flow
from support.proxy import KafkaProxy
from support.proxy_faults import Answer
from support.runs import running

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
