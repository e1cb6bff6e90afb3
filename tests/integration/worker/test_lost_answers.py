"""Requests and answers that are lost, late, repeated or cut off; no row is lost or duplicated.

When a late request arrives, its producer's epoch or member id must already be fenced.
"""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest
from pyspark.sql import SparkSession

from spark_eos._client.error_codes import Code
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from spark_eos._worker import producer
from support import proxy_faults as faults
from support.flow import Flow
from support.members import deadline
from support.proxied_worker import ProxiedWorker, answered
from support.proxy import KafkaProxy
from support.queries import run_available

_ALL_WAYS = [
    faults.CutBefore,
    faults.CutAfter,
    faults.DropAnswer,
    faults.DropRequest,
]
each_way = pytest.mark.parametrize("fault", _ALL_WAYS, ids=lambda fault: fault.__name__)
each_cut = pytest.mark.parametrize("fault", _ALL_WAYS[:2], ids=lambda fault: fault.__name__)


@pytest.fixture
def worker(
    module_worker: ProxiedWorker, proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProxiedWorker]:
    """A worker that gives up on an answer after 0.3 s."""
    monkeypatch.setattr(module_worker.worker.connections, "_request_timeout", 0.3)
    module_worker.add_and_commit()
    yield module_worker
    proxy.reset()
    module_worker.add_and_commit()


def _assert_fenced(worker: ProxiedWorker, late: faults.Request, code: int) -> None:
    """When the request is delivered now, it changes nothing."""
    before = worker.committed()
    answer = worker.proxy.deliver(late)
    assert {p.error_code for topic in answer.topics for p in topic.partitions} == {code}
    assert worker.flow.open_transactions() == []
    assert worker.committed() == before
    assert worker.news() == []


# TxnOffsetCommit -------------------------------------------------------------------------------


@each_way
def test_txn_offset_commit_is_repeated_and_its_epoch_is_fenced(
    fault: type[faults.Fault], worker: ProxiedWorker
) -> None:
    lost = worker.on_offsets(fault())
    used = worker.add_and_commit()
    late = lost.await_hit()
    # It comes when the worker is idle,
    _assert_fenced(worker, late, Code.INVALID_PRODUCER_EPOCH)
    # and in the middle of its next transaction, which has offsets of its own.
    offsets, values = worker.add()
    assert worker.worker.identity != used
    worker.worker.records.flush(deadline())
    worker.proxy.deliver(late)
    worker.writing.commit()
    assert worker.committed() == offsets
    assert worker.news() == values


def test_an_answer_that_comes_after_the_client_gave_up(worker: ProxiedWorker) -> None:
    until = threading.Event()
    held = worker.on_offsets(faults.HoldAnswer(until))
    used = worker.add_and_commit()
    until.set()
    _assert_fenced(worker, held.await_hit(), Code.INVALID_PRODUCER_EPOCH)
    assert worker.add_and_commit() != used


def test_a_request_delayed_past_the_end_of_its_transaction(worker: ProxiedWorker) -> None:
    until = threading.Event()
    held = worker.on_offsets(faults.HoldRequest(until))
    worker.add_and_commit()
    offsets, values = worker.add()
    worker.worker.records.flush(deadline())
    until.set()
    time.sleep(0.1)
    worker.writing.commit()
    assert worker.committed() == offsets
    assert worker.news() == values
    _assert_fenced(worker, held.await_hit(), Code.INVALID_PRODUCER_EPOCH)


def test_txn_offset_commit_arrives_twice_within_its_transaction(worker: ProxiedWorker) -> None:
    twice = faults.Twice()
    worker.on_offsets(twice)
    used = worker.add_and_commit()
    assert {p.error_code for t in twice.first.topics for p in t.partitions} == {0}
    # Every request was answered, so the producer goes on.
    assert worker.add_and_commit() == used


def test_no_answer_at_all(worker: ProxiedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.hurry(monkeypatch)
    lost = worker.on_offsets(faults.DropAnswer(), times=None)
    failure = worker.fails()
    assert failure.again
    assert "TxnOffsetCommit not answered" in str(failure)
    _assert_fenced(worker, lost.await_hit(), Code.INVALID_PRODUCER_EPOCH)


# EndTxn and InitProducerId ---------------------------------------------------------------------


@each_cut
def test_librdkafka_repeats_end_txn_and_the_producer_is_replaced(
    fault: type[faults.Fault], worker: ProxiedWorker
) -> None:
    cut = worker.proxy.on(EndTxnRequest, fault())
    used = worker.add_and_commit()
    late = cut.await_hit()
    offsets, values = worker.add()
    assert worker.worker.identity != used
    worker.worker.records.flush(deadline())
    # An end of the last transaction does not end this one.
    assert worker.proxy.deliver(late).error_code != 0
    worker.writing.commit()
    assert worker.committed() == offsets
    assert worker.news() == values


@each_way
def test_init_producer_id_when_a_transaction_is_ended(
    fault: type[faults.Fault], worker: ProxiedWorker
) -> None:
    worker.on_offsets(answered(0, Code.STALE_MEMBER_EPOCH))
    lost = worker.proxy.on(InitProducerIdRequest, fault())
    worker.fails()
    assert len(lost.hits) == 1
    worker.add_and_commit()


def test_an_epoch_from_before_the_fencing_is_not_the_producers(worker: ProxiedWorker) -> None:
    worker.add_and_commit()
    worker.worker.drop()

    def older(_request: Any, answer: Any) -> None:
        answer.transaction_states[0].producer_epoch -= 1

    rewritten = worker.proxy.on(DescribeTransactionsRequest, faults.Rewrite(older))
    worker.add_and_commit()
    assert rewritten.hits


def test_the_run_waits_for_a_late_answer_to_init_producer_id(
    worker: ProxiedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "_REFUSED_WITHIN", 0.2)
    worker.worker.drop()
    late = threading.Event()
    held = worker.proxy.on(InitProducerIdRequest, faults.HoldAnswer(late))
    timer = threading.Timer(1.5, late.set)
    timer.start()
    worker.add_and_commit()
    timer.join()
    assert held.hits


# The rest --------------------------------------------------------------------------------------


def test_throttle_time_is_waited_out_and_times_nothing_out(worker: ProxiedWorker) -> None:
    def throttled(_request: Any, answer: Any) -> None:
        answer.throttle_time_ms = 600
        answer.topics[0].partitions[0].error_code = Code.CONCURRENT_TRANSACTIONS

    used = worker.worker.identity
    sent = worker.on_offsets(faults.Rewrite(throttled))
    offsets, _values = worker.add()
    again = worker.on_offsets(faults.Fault())
    worker.writing.commit()
    (first,), (second,) = sent.hits, again.hits
    assert second.at - first.at >= 0.6
    assert worker.committed() == offsets
    # Longer than a request may take, yet none was lost.
    worker.news()
    worker.assert_as_before(used)


def test_list_transactions_14_coordinator_load_in_progress(worker: ProxiedWorker) -> None:
    def loading(_request: Any, answer: Any) -> None:
        answer.error_code = Code.COORDINATOR_LOAD_IN_PROGRESS
        answer.transaction_states = []

    worker.add()
    worker.worker.records.flush(deadline())
    worker.proxy.on(ListTransactionsRequest, faults.Rewrite(loading))
    assert worker.flow.open_transactions() == [worker.worker.identity.transactional_id]
    worker.writing.abort()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_class", "fault"),
    [
        (TxnOffsetCommitRequest, faults.CutAfter()),
        (EndTxnRequest, faults.CutBefore()),
        (EndTxnRequest, faults.CutAfter()),
    ],
    ids=["TxnOffsetCommit", "before EndTxn", "after EndTxn"],
)
def test_a_query_whose_connection_is_cut_writes_every_row_once(
    request_class: Any,
    fault: faults.Fault,
    proxied_flow: Flow,
    proxy: KafkaProxy,
    spark_eos_session: SparkSession,
) -> None:
    proxied_flow.produce(range(20))
    cut = proxy.on(request_class, fault)
    reports = run_available(spark_eos_session, proxied_flow)
    assert len(cut.hits) == 1
    assert sum(report.rows_written for report in reports) == 20
    assert sorted(map(int, proxied_flow.values())) == list(range(20))
    assert proxied_flow.committed() == {0: 10, 1: 10}
    assert proxied_flow.open_transactions() == []
