"""Attempts at a batch: fencing between two jobs, and the errors of jobs that fail."""

import io

import pytest
from pyspark import TaskContext

from spark_eos._client.error_codes import Code
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.spark_connection import SparkConnection
from spark_eos.errors import RecordsLostError, WriteError
from support.flow import Flow
from support.manual_members import drop_members
from support.members import deadline
from support.planting import remove
from support.proxied_worker import answered
from support.proxy import KafkaProxy, broker_that_is_away
from support.queries import until
from support.runs import Runs, running
from support.writing import rows, transactions


def _attempts(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Makes the next tasks these attempts, one after the other."""
    left = iter(numbers)

    def get() -> TaskContext:
        TaskContext._setTaskContext(None)
        context = TaskContext()
        context._attemptNumber = next(left)
        return context

    monkeypatch.setattr(TaskContext, "_taskContext", None)
    monkeypatch.setattr(TaskContext, "get", get)
    # There is no Spark here, which would send one number more after all rows.
    number = io.BufferedReader(io.BytesIO(b"more"))
    monkeypatch.setattr(SparkConnection, "of_worker", lambda: SparkConnection(number))


def test_a_repeated_attempt_writes_nothing_but_the_next_one_does(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_yet() -> None:
        assert runs.producers() == []
        assert flow.values() == []

    with running(flow) as runs:
        _attempts(monkeypatch, 1, 2, 0, 0)
        report = runs.batch(3, 2, while_planned=nothing_yet, in_attempt=2)
        assert (report.attempts, report.transactions, report.rows_written) == (2, 2, 5)
        runs.written_once(3, 2)


@pytest.mark.parametrize("begun", [False, True], ids=["yet to begin", "begun"])
def test_a_live_first_attempt_is_fenced_before_rows_are_written(
    flow: Flow,
    begun: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running(flow) as runs:
        runs.batch(2, 2)
        with transactions(flow, runs.run._membership) as first:
            if begun:
                first.add(rows(flow, 0, 2, 3))
                first._producer.records.flush(deadline())

            def it_goes_on() -> None:
                if not begun:
                    first.add(rows(flow, 0, 2, 3))
                reason = "47 INVALID_PRODUCER_EPOCH" if begun else "25 UNKNOWN_MEMBER_ID"
                with pytest.raises(TransactionError, match=reason):
                    first.commit()

            _attempts(monkeypatch, 1, 0)
            report = runs.batch(4, 2, while_planned=it_goes_on, in_attempt=2)
        assert (report.attempts, report.rows_written) == (2, 2)
        runs.written_once(4, 2)


def test_a_first_attempt_is_fenced_if_the_second_has_no_rows(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(flow) as runs:
        runs.batch(2, 2)
        with transactions(flow, runs.run._membership) as first:
            _attempts(monkeypatch, 0, 1)
            report = runs.batch(4, 2, tasks=[[(0, range(2, 4))], []])
            assert report.attempts == 1
            first.add(rows(flow, 0, 2, 3))
            with pytest.raises(TransactionError, match="25 UNKNOWN_MEMBER_ID"):
                first.commit()
        runs.written_once(4, 2)


@pytest.mark.slow
def test_a_broker_that_is_down_between_two_attempts_is_skipped(
    proxied_flow: Flow, proxy: KafkaProxy, caplog: pytest.LogCaptureFixture
) -> None:
    flow = proxied_flow
    with running(flow) as runs:
        runs.batch(2, 2)

        def lose_a_broker_and_the_members() -> None:
            until(lambda: _knows_of_broker_2(runs), lambda: "the run to hear of it")
            drop_members(flow)

        with broker_that_is_away(proxy, silent=False) as port:
            report = runs.batch(4, 4, while_planned=lose_a_broker_and_the_members)
            assert report.attempts == 2
        proxy.reset()
        runs.written_once(4, 4)
    found = [r.getMessage() for r in caplog.records if "is skipped" in r.getMessage()]
    assert [f"2 (127.0.0.1:{port}) does not answer" in text for text in found] == [True], found


def _knows_of_broker_2(runs: Runs) -> bool:
    connections = runs.run._start.target
    _, manager = connections._connected(deadline())
    manager.expire_metadata()
    return 2 in connections.brokers(deadline())


def test_records_that_are_deleted_while_the_job_runs_are_named(flow: Flow) -> None:
    flow.produce(range(10), partition=0)

    def fail_as_spark_does() -> None:
        remove(flow, flow.source, 0, 7)
        raise RuntimeError('set the source option "failOnDataLoss" to "false"')

    with running(flow) as runs:
        runs.batch(4, 0)
        with pytest.raises(RecordsLostError, match=f"batch 1 .*{flow.source}-0 offsets 4 to 6"):
            runs.batch(10, 0, while_planned=fail_as_spark_does)
        runs.written_once(4, 0)


def test_a_job_failure_without_deletions_is_reported_unchanged(flow: Flow) -> None:
    def fail() -> None:
        raise RuntimeError("failOnDataLoss, but nothing is lost")

    with running(flow) as runs, pytest.raises(RuntimeError, match="nothing is lost"):
        runs.batch(10, 0, while_planned=fail)
    assert flow.values() == []


def test_the_last_of_the_attempts_says_why_rows_are_not_written(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    # Both partitions at first, then one of them.
    proxy.on(TxnOffsetCommitRequest, answered(Code.UNKNOWN_MEMBER_ID), times=2)
    proxy.on(
        TxnOffsetCommitRequest,
        answered(Code.FENCED_MEMBER_EPOCH),
        where=lambda request: request.topics[0].partitions[0].partition_index == 1,
    )
    with (
        running(proxied_flow, max_attempts=2) as runs,
        pytest.raises(WriteError, match=": 1 source partitions are not written after 2 att") as e,
    ):
        runs.batch(5, 5)
    assert "110 FENCED_MEMBER_EPOCH" in str(e.value)
    assert "25 UNKNOWN_MEMBER_ID" not in str(e.value)
    assert proxied_flow.merged_values() == [f"0/{n}" for n in range(5)]
