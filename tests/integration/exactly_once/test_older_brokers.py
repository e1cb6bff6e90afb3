"""Kafka 4.3, which lacks topic ids in TxnOffsetCommit, and features that Kafka 4.0 lacks."""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_eos._checks import preflight
from spark_eos._checks.start import Start
from spark_eos._kafka.open_transactions import open_transactions
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from spark_eos._kafka.transactional_ids import id_pattern
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos.errors import UnsupportedBrokerError
from spark_eos.testing import EmbeddedKafka
from support.flow import Flow
from support.members import deadline, started, writer_settings
from support.proxy_faults import Request
from support.queries import run_available, until
from support.runs import BETWEEN, IN_JOB, settles_nothing_of_a_recreated_source
from support.writing import refused, rows, sent_requests, speak_at_most, transactions

_OFFSET_COMMIT, _OFFSET_FETCH, _LIST_TRANSACTIONS = 8, 9, 66
# Offsets by topic id and patterns of transactional ids came with Kafka 4.1.
_KAFKA_4_3 = {_OFFSET_COMMIT: 10, _OFFSET_FETCH: 10, _LIST_TRANSACTIONS: 2}
_KAFKA_4_0 = {_OFFSET_COMMIT: 9, _OFFSET_FETCH: 9, _LIST_TRANSACTIONS: 1}

both = pytest.mark.parametrize("spoken", [_KAFKA_4_3, _KAFKA_4_0], ids=["4.3", "as 4.0"])


@pytest.fixture(scope="module")
def embedded_kafka() -> Iterator[EmbeddedKafka]:
    """The flows of this module are on a broker of Kafka 4.3.1."""
    with EmbeddedKafka(jar_set="kafka-4.3.1") as broker:
        yield broker


def _versions(requests: list[Request], key: int) -> set[int]:
    return {request.version for request in requests if request.api_key == key}


def _chosen(flow: Flow) -> int:
    settings = writer_settings(flow)
    with closing(Start(settings)) as start:
        return preflight.check_cluster(start, settings, [flow.source], deadline())


def test_offsets_go_by_name_and_commit_with_their_transaction(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = sent_requests(monkeypatch)
    assert _chosen(flow) == 5
    with started(flow) as membership, transactions(flow, membership) as writing:
        writing.add(rows(flow, 0, 0, 1))
        writing.add(rows(flow, 1, 7))
        assert flow.committed() == {}
        writing.commit()
        assert sorted(flow.values()) == ["0/0", "0/1", "1/7"]
        assert flow.committed() == {0: 2, 1: 8}
        writing.add(rows(flow, 0, 2))
        writing.abort()
        assert flow.committed() == {0: 2, 1: 8}
    sent = [request for request in requests if request.api_key == TxnOffsetCommitRequest.API_KEY]
    assert {request.version for request in sent} == {5}
    assert all(flow.source.encode() in request.content for request in sent)


@pytest.mark.slow
@pytest.mark.parametrize("past", [True, False], ids=["past", "future"])
def test_a_member_at_another_epoch_commits_nothing(flow: Flow, *, past: bool) -> None:
    with started(flow) as membership, transactions(flow, membership) as writing:
        member = writing._member
        # A member is given its first partitions at epoch 2.
        writing._member = dataclasses.replace(member, epoch=1 if past else member.epoch + 1)
        writing.add(rows(flow, 0, 0, 1))
        writing.add(rows(flow, 1, 0))
        # Before v6 there is one code for all that is wrong with an epoch.
        assert refused(flow, writing, "-0: 22 ILLEGAL_GENERATION").again


@pytest.mark.slow
def test_a_recreated_source_topic_takes_no_offset_by_name(flow: Flow) -> None:
    with started(flow) as membership, transactions(flow, membership) as writing:
        writing.add(rows(flow, 0, 0, 1))
        flow.recreate(flow.source)
        flow.produce(range(20))
        # The broker takes the offsets, for it knows the topic by name alone.
        assert not refused(flow, writing, "was deleted and recreated").again
        # The member's assignment tells the driver within a heartbeat.
        until(
            lambda: not membership.assignment().partitions, lambda: "the assignment to change", 20
        )


@pytest.mark.slow
@both
@pytest.mark.parametrize("moment", [IN_JOB, BETWEEN])
def test_the_driver_settles_no_offsets_of_a_recreated_topic(
    flow: Flow, spoken: dict[int, int], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak_at_most(monkeypatch, spoken)
    settles_nothing_of_a_recreated_source(flow, moment)


@pytest.mark.slow
@both
def test_open_transactions_of_the_group_alone_are_found(
    flow: Flow, spoken: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    speak_at_most(monkeypatch, spoken)
    stranger = Flow(flow.broker, flow.checkpoint, flow.worker_directory)
    with ExitStack() as stack:
        for each in (flow, stranger):
            membership = stack.enter_context(started(each))
            writing = stack.enter_context(transactions(each, membership))
            writing.add(rows(each, 0, 0))
            writing._producer.records.flush(deadline())
        requests = sent_requests(monkeypatch)
        with flow.connections() as connections:
            found = open_transactions(
                connections, id_pattern("spark-eos", flow.group_id), deadline()
            )
        assert len(found) == 1
        assert flow.group_id in found[0]
        assert _versions(requests, _LIST_TRANSACTIONS) == {spoken[_LIST_TRANSACTIONS]}


@pytest.mark.slow
@both
def test_a_query_ends_open_transactions_and_writes_rows_once(
    flow: Flow,
    spark_eos_session: SparkSession,
    spoken: dict[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speak_at_most(monkeypatch, spoken)
    flow.produce(range(20))
    with started(flow) as lost, transactions(flow, lost) as writing:
        # A worker that hangs between its offsets and its commit.
        writing.add(rows(flow, 0, 0, 1))
        writing._producer.records.flush(deadline())
        writing._send_offsets(deadline())
        lost.abandon()
        assert len(flow.open_transactions()) == 1
        reports = run_available(spark_eos_session, flow)
        assert flow.open_transactions() == []
        with pytest.raises(TransactionError) as refusal:
            writing.commit()
        assert refusal.value.again
    assert [report.offset_commit_version for report in reports] == [5]
    assert sorted(flow.values(), key=int) == [str(n) for n in range(20)]
    assert flow.committed() == {0: 10, 1: 10}
    flow.produce(range(20, 24))
    (again,) = run_available(spark_eos_session, flow)
    assert (again.rows_written, again.rows_skipped) == (4, 0)
    assert flow.committed() == {0: 12, 1: 12}


@pytest.mark.parametrize(
    "switched_off",
    [
        {"properties": {"group.coordinator.rebalance.protocols": "classic"}},
        pytest.param({"features": {"group.version": 0}}, marks=pytest.mark.slow),
    ],
    ids=["protocols", "feature"],
)
def test_brokers_whose_consumer_protocol_is_off(tmp_path: Path, switched_off: Any) -> None:
    with EmbeddedKafka(**switched_off) as broker:
        flow = Flow(broker, str(tmp_path / "checkpoint"), str(tmp_path / "workers"))
        with pytest.raises(UnsupportedBrokerError) as refused:
            _chosen(flow)
    for words in (
        "35 UNSUPPORTED_VERSION",
        "upgrade --feature group.version=1",
        "group.coordinator.rebalance.protocols",
    ):
        assert words in refused.value.text
