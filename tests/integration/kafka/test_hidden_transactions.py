"""Open transactions that a start can't find: a broker is down, or a coordinator forgot them."""

import logging
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import DescribeProducersRequest
from kafka.protocol.producer import WriteTxnMarkersRequest

from spark_eos._exactly_once import offsets as group_offsets
from spark_eos._kafka.cluster import NO_ID, topics_with_offsets
from spark_eos._kafka.connection import CoordinatorType
from spark_eos._kafka.open_transactions import describe_transaction
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import fence_producer
from spark_eos.errors import DeadlineExceededError
from spark_eos.testing import EmbeddedKafka
from support.flow import Flow
from support.members import deadline, started
from support.proxy import KafkaProxy, broker_that_is_away
from support.runs import running
from support.writing import rows, transactions


@pytest.mark.slow
@pytest.mark.parametrize("silent", [False, True], ids=["refuses connections", "does not answer"])
def test_a_broker_that_is_away_does_not_hold_up_a_start(
    proxied_flow: Flow,
    proxy: KafkaProxy,
    silent: bool,  # noqa: FBT001
    caplog: pytest.LogCaptureFixture,
) -> None:
    flow = proxied_flow
    with started(flow) as membership, transactions(flow, membership) as dead:
        dead.add(rows(flow, 0, 0, 1))
        dead._producer.records.flush(deadline())
        dead._send_offsets(deadline())
        membership.abandon()
        # What the killed worker has left is with the broker that answers.
        with (
            caplog.at_level(logging.INFO, "spark_eos"),
            broker_that_is_away(proxy, silent=silent) as port,
            running(flow) as runs,
        ):
            runs.batch(5, 5)
            proxy.reset()
            runs.written_once(5, 5)
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert [w for w in warnings if f"127.0.0.1:{port}" in w and "does not answer" in w], warnings


def _hang(flow: Flow) -> None:
    """Leaves a transaction that holds offsets and is unknown to its membership.

    A client older than KIP-890 did this if it lost the coordinator: it sent offsets without the
    coordinator's knowledge, and this broker does not verify them.
    """
    topic_class = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    with flow.connections() as connections:
        fence_producer(connections, "somebody", 60_000, deadline())
        producer = describe_transaction(connections, "somebody", deadline())
        request = TxnOffsetCommitRequest(
            transactional_id="somebody",
            group_id=flow.group_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=topics_with_offsets(
                topic_class,
                topic_class.TxnOffsetCommitRequestPartition,
                {TopicPartition(flow.source, 0): 1},
                {flow.source: NO_ID},
                {},
            ),
            max_version=4,
        )
        answer = connections.ask_coordinator(
            CoordinatorType.GROUP, flow.group_id, request, deadline(), codes=_codes
        )
    assert _codes(answer) == [0]


def _codes(answer: Any) -> list[int]:
    return [p.error_code for topic in answer.topics for p in topic.partitions]


@pytest.mark.slow
def test_a_hanging_transaction_is_named_with_what_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_offsets, "ABORT_INTERVAL", 0)
    unverified = {
        "transaction.partition.verification.enable": "false",
        "offsets.topic.num.partitions": "7",
    }
    with EmbeddedKafka(properties=unverified) as broker:
        flow = Flow(broker, str(tmp_path / "c"), str(tmp_path / "w"))
        _hang(flow)
        with (
            running(
                flow, group_timeout_ms=6_000, transaction_timeout_ms=1_000, max_transaction_ms=500
            ) as runs,
            pytest.raises(DeadlineExceededError, match="88 UNSTABLE_OFFSET_COMMIT") as failure,
        ):
            runs.batch(5, 5)
        tool = f"kafka-transactions.sh --bootstrap-server {flow.bootstrap_servers}"
        for command in ("find-hanging", "abort"):
            assert f"`{tool} {command} --topic __consumer_offsets" in str(failure.value)
        assert "spark-eos abort --prefix" in str(failure.value)
        # What the text advises is what helps.
        _find_and_abort(flow)
        with running(flow) as runs:
            runs.batch(5, 5)
            runs.written_once(5, 5)


def _find_and_abort(flow: Flow) -> None:
    """Does the same as ``kafka-transactions.sh find-hanging`` and ``abort``."""
    topic_class = DescribeProducersRequest.TopicRequest
    markers = WriteTxnMarkersRequest.WritableTxnMarker
    with flow.connections() as connections:
        asked = DescribeProducersRequest(
            topics=[topic_class(name="__consumer_offsets", partition_indexes=[*range(7)])]
        )
        answer = connections.send(asked, deadline())
        ((partition, hanging),) = (
            (found.partition_index, producer)
            for found in answer.topics[0].partitions
            for producer in found.active_producers
            if producer.current_txn_start_offset >= 0
        )
        request = WriteTxnMarkersRequest(
            markers=[
                markers(
                    producer_id=hanging.producer_id,
                    producer_epoch=hanging.producer_epoch,
                    transaction_result=False,
                    coordinator_epoch=max(0, hanging.coordinator_epoch),
                    topics=[
                        markers.WritableTxnMarkerTopic(
                            name="__consumer_offsets", partition_indexes=[partition]
                        )
                    ],
                )
            ]
        )
        ended = connections.send(request, deadline())
    assert [p.error_code for m in ended.markers for t in m.topics for p in t.partitions] == [0]
