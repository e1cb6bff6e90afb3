"""Requests and answers that are lost, late, repeated or cut off; no row is lost or duplicated.

When a late request arrives, its producer's epoch or member id must already be fenced.
"""

import threading
from typing import Any

import pytest
from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

from spark_eos._client.error_codes import Code
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from spark_eos._worker import producer
from support import proxy_faults as faults
from support.proxied_worker import ProxiedWorker, answered

_ALL_WAYS = [faults.CutBefore, faults.CutAfter, faults.DropAnswer, faults.DropRequest]


@pytest.fixture(autouse=True)
def _impatient(worker: ProxiedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the worker give up on an answer after 0.3 s."""
    monkeypatch.setattr(worker.worker.connections, "_request_timeout", 0.3)


def _assert_fenced(worker: ProxiedWorker, late: faults.Request) -> None:
    """When the TxnOffsetCommit request is delivered now, it changes nothing."""
    before = worker.committed()
    answer = worker.proxy.deliver(late)
    codes = {p.error_code for topic in answer.topics for p in topic.partitions}
    assert codes == {Code.INVALID_PRODUCER_EPOCH}
    assert worker.flow.open_transactions() == []
    assert worker.committed() == before
    assert worker.news() == []


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        *((TxnOffsetCommitRequest, way) for way in _ALL_WAYS),
        (TxnOffsetCommitRequest, faults.HoldAnswer),
        (TxnOffsetCommitRequest, faults.HoldRequest),
        # librdkafka repeats this one.
        (EndTxnRequest, faults.CutBefore),
        (EndTxnRequest, faults.CutAfter),
    ],
)
def test_a_request_is_repeated_and_its_epoch_is_fenced(
    message: Any, kind: Any, worker: ProxiedWorker
) -> None:
    released = threading.Event()
    held = kind in (faults.HoldAnswer, faults.HoldRequest)
    lost = worker.proxy.on(message, kind(released) if held else kind())
    used = worker.add_and_commit()
    late = lost.await_hit()
    # It comes when the worker is idle,
    if kind is faults.HoldAnswer:
        released.set()
    if message is TxnOffsetCommitRequest:
        _assert_fenced(worker, late)

    # and in the middle of its next transaction, which has offsets of its own.
    def deliver() -> None:
        assert worker.worker.identity != used
        released.set()
        answer = worker.proxy.deliver(late)
        if message is EndTxnRequest:
            assert answer.error_code != 0

    worker.commits(meanwhile=deliver)
    if message is TxnOffsetCommitRequest:
        _assert_fenced(worker, late)


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
    worker.fails("TxnOffsetCommit not answered", again=True)
    _assert_fenced(worker, lost.await_hit())


# InitProducerId --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", _ALL_WAYS)
def test_init_producer_id_when_a_transaction_is_ended(
    fault: type[faults.Fault], worker: ProxiedWorker
) -> None:
    worker.on_offsets(answered(0, Code.STALE_MEMBER_EPOCH))
    lost = worker.proxy.on(InitProducerIdRequest, fault())
    worker.fails(again=True)
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
    again = worker.on_offsets(faults.Fault())
    worker.add_and_commit()
    (first,), (second,) = sent.hits, again.hits
    # Longer than a request may take, yet none was lost.
    assert second.at - first.at >= 0.6
    worker.assert_as_before(used)


def test_list_transactions_14_coordinator_load_in_progress(worker: ProxiedWorker) -> None:
    def loading(_request: Any, answer: Any) -> None:
        answer.error_code = Code.COORDINATOR_LOAD_IN_PROGRESS
        answer.transaction_states = []

    def listed() -> None:
        worker.proxy.on(ListTransactionsRequest, faults.Rewrite(loading))
        assert worker.flow.open_transactions() == [worker.worker.identity.transactional_id]

    worker.commits(meanwhile=listed)
