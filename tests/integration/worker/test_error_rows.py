"""Each verdict on TxnOffsetCommit's errors, for one partition of a request with two.

The broker accepts the whole request; the proxy changes its answer. Unless the request is retried
until it is accepted, nothing may remain, even of the accepted partition.
"""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos._exactly_once import transaction
from spark_eos._kafka.cluster import NO_ID
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import MemberIdentity, ProducerIdAndEpoch, fence_producer
from spark_eos._worker.librdkafka_errors import TransactionError
from support.flow import Flow
from support.members import deadline
from support.proxied_worker import ProxiedWorker, answered
from support.proxy import KafkaProxy
from support.proxy_faults import Rewrite
from support.queries import relay, run_available
from support.versions import needs_topic_ids

# Of each verdict one code, and those that mean more: test_error_codes.py has the whole table.
_UNKNOWN = "100 UNKNOWN_TOPIC_ID"
_RETRIED = "51 CONCURRENT_TRANSACTIONS"
_MOVED = "16 NOT_COORDINATOR"
_REJECTED = "113 STALE_MEMBER_EPOCH"
_FENCED = "47 INVALID_PRODUCER_EPOCH"
_REFUSED = {
    "29 TOPIC_AUTHORIZATION_FAILED": "lacks Read on topic 'in-",
    "30 GROUP_AUTHORIZATION_FAILED": "lacks Read on group 'group-",
    "53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "lacks Write on transactional ids that begin with",
    "12 OFFSET_METADATA_TOO_LARGE": "offset.metadata.max.bytes",
    "12345 UNKNOWN": "",
}


def _code(row: str) -> int:
    return int(row.split(maxsplit=1)[0])


@pytest.fixture
def rows(module_worker: ProxiedWorker, proxy: KafkaProxy) -> Iterator[ProxiedWorker]:
    """A worker like a new one, except for what earlier tests have committed."""
    plan = dict(module_worker.writing._plan)
    yield module_worker
    proxy.reset()
    module_worker.writing._plan = plan
    module_worker.add_and_commit()


@pytest.mark.slow
@pytest.mark.parametrize("row", [_UNKNOWN, _RETRIED, _MOVED])
def test_retried_until_it_is_accepted(row: str, rows: ProxiedWorker) -> None:
    used = rows.add_and_commit()
    refused = rows.on_offsets(answered(0, _code(row)), times=2)
    offsets, values = rows.add()
    looked_up = rows.group_look_ups()
    rows.writing.commit()
    assert len(refused.hits) == 2
    assert len(looked_up.hits) == (2 if row == _MOVED else 0)
    assert rows.committed() == offsets
    assert rows.news() == values
    rows.assert_as_before(used)


@pytest.mark.timeout(30)
def test_retried_no_longer_than_its_transaction_may_live(
    rows: ProxiedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.on_offsets(answered(0, 51), times=None)
    monkeypatch.setattr(transaction, "_LEAST_SECONDS", 0.1)
    # Later the broker would abort it, and its answer, 47 then, would hide the reason.
    failure = rows.fails(age=59.8)
    assert "s (transactions.timeout_ms); last error: TxnOffsetCommit:" in str(failure)
    assert "51 CONCURRENT_TRANSACTIONS" in str(failure)


@pytest.mark.slow
@pytest.mark.parametrize("row", [_REJECTED, "134 UNASSIGNED_PARTITION", _FENCED])
def test_aborted_and_left_to_another_attempt(row: str, rows: ProxiedWorker) -> None:
    sent = rows.on_offsets(answered(0, _code(row)), times=None)
    failure = rows.fails()
    assert failure.again
    assert f"group '{rows.flow.group_id}' as member spark-eos-0 at epoch" in str(failure)
    assert f": {rows.flow.source}-1: {row}" in str(failure)
    # Never repeated with another producer epoch: ours can't change but to our successor's.
    assert len(sent.hits) == 1


def test_by_name_aborted_and_left_to_another_attempt(rows: ProxiedWorker) -> None:
    row = "22 ILLEGAL_GENERATION"
    for partition in (0, 1):
        rows.change_plan(partition, topic_id=NO_ID)
    sent = rows.on_offsets(answered(0, _code(row)), times=None)
    failure = rows.fails()
    assert failure.again
    assert f": {rows.flow.source}-1: {row}" in str(failure)
    assert [request.version for request in sent.hits] == [5]


@pytest.mark.parametrize("row", _REFUSED)
def test_aborted_with_an_error_that_helps(row: str, rows: ProxiedWorker) -> None:
    sent = rows.on_offsets(answered(0, _code(row)), times=None)
    failure = rows.fails()
    assert not failure.again
    assert f"group '{rows.flow.group_id}' as member spark-eos-0 at epoch" in str(failure)
    assert f": {rows.flow.source}-1: {row}" in str(failure)
    assert _REFUSED[row] in str(failure)
    assert len(sent.hits) == 1


def test_the_worst_of_an_answers_codes_decides(rows: ProxiedWorker) -> None:
    sent = rows.on_offsets(answered(16, 113), times=None)
    failure = rows.fails()
    assert failure.again
    both = f"{rows.flow.source}-0: 16 NOT_COORDINATOR, {rows.flow.source}-1: 113 STALE_MEMBER_EPOCH"
    assert both in str(failure)
    assert len(sent.hits) == 1


def _leaves_out(_request: Any, answer: Any) -> None:
    del answer.topics[0].partitions[1]


def _names_another_topic(_request: Any, answer: Any) -> None:
    answer.topics[0].topic_id = uuid.UUID(int=7)


def _names_one_twice(_request: Any, answer: Any) -> None:
    answer.topics[0].partitions[1].partition_index = 0


@pytest.mark.parametrize(
    ("change", "instead"),
    [
        (_leaves_out, "{source}-0"),
        pytest.param(_names_another_topic, "{other}-0, {other}-1", marks=needs_topic_ids),
        (_names_one_twice, "{source}-0, {source}-0"),
    ],
)
def test_an_answer_about_something_else(change: Any, instead: str, rows: ProxiedWorker) -> None:
    rows.on_offsets(Rewrite(change), times=None)
    failure = rows.fails()
    assert not failure.again
    source = rows.flow.source
    asked = f"group '{rows.flow.group_id}': asked about {source}-0, {source}-1, but the coordinator"
    assert asked in str(failure)
    words = instead.format(source=source, other=uuid.UUID(int=7))
    assert failure.text.endswith(f"answered about {words}")


# What the broker itself answers -----------------------------------------------------------------


def _member(rows: ProxiedWorker) -> MemberIdentity:
    return rows.writing._plan[TopicPartition(rows.flow.source, 1)].member


# A member that is gone is in test_transaction.py: it was taken over.
@needs_topic_ids
@pytest.mark.slow
def test_the_brokers_own_answer_to_a_wrong_epoch(rows: ProxiedWorker) -> None:
    member = _member(rows)
    rows.change_plan(1, member=replace(member, epoch=member.epoch + 1))
    failure = rows.fails()
    assert failure.again
    assert f": {rows.flow.source}-1: 113 STALE_MEMBER_EPOCH" in str(failure)


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    ["100 UNKNOWN_TOPIC_ID", pytest.param("69 GROUP_ID_NOT_FOUND", marks=needs_topic_ids)],
)
def test_the_brokers_own_answer_to_what_does_not_exist(
    row: str, rows: ProxiedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.hurry(monkeypatch)
    if row.startswith("69"):
        nowhere = replace(rows.writing._settings, group_id="no-such-group")
        monkeypatch.setattr(rows.writing, "_settings", nowhere)
    else:
        for partition in (0, 1):
            rows.change_plan(partition, topic_id=uuid.uuid4())
    failure = rows.fails()
    if row.startswith("69"):
        assert failure.again
        assert f"{rows.flow.source}-1: {row}" in str(failure)
    else:
        # Looked up, the topic has another id than the one that the broker does not know.
        assert not failure.again
        assert f"'{rows.flow.source}' was deleted and recreated" in str(failure)


@pytest.mark.slow
@pytest.mark.parametrize("row", [_FENCED, "49 INVALID_PRODUCER_ID_MAPPING"])
def test_the_brokers_own_answer_to_a_fenced_producer(row: str, rows: ProxiedWorker) -> None:
    before = rows.committed()
    rows.add()
    rows.worker.records.flush(deadline())
    used = rows.worker.identity
    if row.startswith("47"):
        fence_producer(rows.connections, used.transactional_id, 60_000, deadline())
    else:
        rows.worker._identity = ProducerIdAndEpoch(used.transactional_id, 1 << 40, used.epoch)
    with pytest.raises(TransactionError, match=row) as failure:
        rows.writing.commit()
    assert failure.value.again
    rows.assert_nothing_left(before, used)


# Whole queries ----------------------------------------------------------------------------------


def _run(spark: SparkSession, flow: Flow, **options: Any) -> list[BatchReport]:
    """A query whose only task commits both source partitions with one request."""
    return run_available(spark, flow, lambda f: relay(f).coalesce(1), max_members=1, **options)


@pytest.mark.slow
@pytest.mark.parametrize("row", ["29 TOPIC_AUTHORIZATION_FAILED", "3 UNKNOWN_TOPIC_OR_PARTITION"])
def test_a_query_ends_and_the_next_writes_every_row(
    row: str, proxied_flow: Flow, proxy: KafkaProxy, spark_eos_session: SparkSession
) -> None:
    proxied_flow.produce(range(20))
    proxy.on(TxnOffsetCommitRequest, answered(0, _code(row)), times=None)
    # A code that is retried, to the end of two attempts.
    options = {"transaction_timeout_ms": 1_000, "max_transaction_ms": 900, "max_attempts": 2}
    with pytest.raises(StreamingQueryException) as failure:
        _run(spark_eos_session, proxied_flow, **options)
    reason = str(failure.value)
    assert f"batch 0 of group '{proxied_flow.group_id}'" in reason
    assert f"{proxied_flow.source}-1: {row}" in reason
    assert _REFUSED.get(row, "not written after 2 attempts (limits.max_attempts)") in reason
    proxy.reset()
    assert proxied_flow.values() == []
    assert proxied_flow.committed() == {0: 0, 1: 0}
    assert proxied_flow.open_transactions() == []
    (report,) = _run(spark_eos_session, proxied_flow)
    assert report.rows_written == 20
    assert sorted(map(int, proxied_flow.values())) == list(range(20))


def _in_a_second_attempt(proxy: KafkaProxy) -> None:
    proxy.on(TxnOffsetCommitRequest, answered(0, _code(_REJECTED)))


def test_a_second_attempt_with_columns_under_an_alias(
    proxied_flow: Flow, proxy: KafkaProxy, spark_eos_session: SparkSession
) -> None:
    """``source.topic`` is then also the row's target topic."""
    flow = proxied_flow
    flow.produce(range(20))
    _in_a_second_attempt(proxy)

    def aliased(frame: DataFrame) -> DataFrame:
        target = F.lit(flow.target).alias("topic")
        return relay(frame).coalesce(1).select("source", "key", "value", target)

    reports: list[BatchReport] = []
    sink = ExactlyOnceSink(**flow.options(), on_batch=reports.append)

    def batch(frame: DataFrame, batch_id: int) -> None:
        sink(frame.alias("source").select("source.*"), batch_id)

    frame = aliased(sink.read(spark_eos_session, subscribe=flow.source))
    query = sink.write(frame).foreachBatch(batch).trigger(availableNow=True).start()
    query.awaitTermination()
    sink.close()
    (report,) = reports
    assert (report.attempts, report.rows_written) == (2, 20)
    assert sorted(map(int, flow.values())) == list(range(20))


def test_rows_missing_from_a_second_attempt_end_the_query(
    proxied_flow: Flow, proxy: KafkaProxy, spark_eos_session: SparkSession, tmp_path: Path
) -> None:
    """A row filtered out in only one attempt would count as having no output."""
    proxied_flow.produce(range(20))
    _in_a_second_attempt(proxy)
    seen = tmp_path / "seen"

    def once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            yield rows.slice(0, 0) if seen.exists() else rows
        seen.touch()

    def vanishing(frame: DataFrame) -> DataFrame:
        chosen = relay(frame).coalesce(1)
        return chosen.mapInArrow(once, chosen.schema)

    first = f"source {proxied_flow.source}-0 had rows in attempt 1 and has none in attempt"
    with pytest.raises(StreamingQueryException, match=first):
        run_available(spark_eos_session, proxied_flow, vanishing)
    assert proxied_flow.values() == []
    assert proxied_flow.committed() == {0: 0, 1: 0}
