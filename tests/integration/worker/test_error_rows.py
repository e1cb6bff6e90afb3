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
from spark_eos._kafka.transactions import fence_producer
from support.flow import Flow
from support.members import deadline
from support.proxied_worker import ProxiedWorker, answered
from support.proxy import KafkaProxy
from support.proxy_faults import Rewrite
from support.queries import relay, run_available
from support.versions import OFFSET_COMMIT, needs_topic_ids

# Of each verdict one code, and those that mean more: test_error_codes.py has the whole table.
_RETRIED = "51 CONCURRENT_TRANSACTIONS"
_MOVED = "16 NOT_COORDINATOR"
_REJECTED = "113 STALE_MEMBER_EPOCH"
_REFUSED = {
    "29 TOPIC_AUTHORIZATION_FAILED": "topic 'in-",
    "30 GROUP_AUTHORIZATION_FAILED": "group 'group-",
    "53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "Write on transactional ids",
    "12 OFFSET_METADATA_TOO_LARGE": "offset.metadata.max.bytes",
    "12345 UNKNOWN": "",
}


def _code(row: str) -> int:
    return int(row.split(maxsplit=1)[0])


@pytest.mark.slow
@pytest.mark.parametrize("row", ["100 UNKNOWN_TOPIC_ID", _RETRIED, _MOVED])
def test_retried_until_it_is_accepted(row: str, worker: ProxiedWorker) -> None:
    used = worker.add_and_commit()
    refused = worker.on_offsets(answered(0, _code(row)), times=2)
    offsets, values = worker.add()
    looked_up = worker.group_look_ups()
    worker.writing.commit()
    assert len(refused.hits) == 2
    assert len(looked_up.hits) == (2 if row == _MOVED else 0)
    assert worker.committed() == offsets
    assert worker.news() == values
    worker.assert_as_before(used)


def test_retried_no_longer_than_its_transaction_may_live(
    worker: ProxiedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.on_offsets(answered(0, _code(_RETRIED)), times=None)
    monkeypatch.setattr(transaction, "_LEAST_SECONDS", 0.1)
    # Later the broker would abort it, and its answer, 47 then, would hide the reason.
    words = ["transactions.timeout_ms", "TxnOffsetCommit", _RETRIED]
    worker.fails(*words, again=True, age=59.8)


def _aborted(row: str, *, again: bool, first: str = "", slow: bool = False) -> Any:
    marks = [pytest.mark.slow] if slow else []
    return pytest.param(first, row, again, marks=marks, id=f"{first} {row}".strip())


@pytest.mark.parametrize(
    ("first", "row", "again"),
    [
        _aborted(_REJECTED, again=True, slow=True),
        _aborted("134 UNASSIGNED_PARTITION", again=True, slow=True),
        # Never repeated with another producer epoch: only a successor's epoch could replace ours.
        _aborted("47 INVALID_PRODUCER_EPOCH", again=True, slow=True),
        _aborted("22 ILLEGAL_GENERATION", again=True),
        # The worst of an answer's codes decides.
        _aborted(_REJECTED, again=True, first=_MOVED),
        *(_aborted(row, again=False) for row in _REFUSED),
    ],
)
def test_aborted_at_once(first: str, row: str, worker: ProxiedWorker, *, again: bool) -> None:
    """Left to another attempt, or with an error that helps."""
    by_name = row.startswith("22")
    for partition in (0, 1) if by_name else ():
        worker.change_plan(partition, topic_id=NO_ID)
    sent = worker.on_offsets(answered(_code(first or "0"), _code(row)), times=None)
    source, group = worker.flow.source, f"group '{worker.flow.group_id}' as member spark-eos-0"
    wrong = [f"{source}-0: {first}"] if first else []
    words = [group, *wrong, f"{source}-1: {row}", _REFUSED.get(row, "")]
    worker.fails(*words, again=again)
    assert [request.version for request in sent.hits] == [5 if by_name else OFFSET_COMMIT]


def _leaves_out(_request: Any, answer: Any) -> None:
    del answer.topics[0].partitions[1]


def _names_another_topic(_request: Any, answer: Any) -> None:
    answer.topics[0].topic_id = uuid.UUID(int=7)


def _names_one_twice(_request: Any, answer: Any) -> None:
    answer.topics[0].partitions[1].partition_index = 0


_OTHER = uuid.UUID(int=7)


@pytest.mark.parametrize(
    ("change", "instead"),
    [
        (_leaves_out, "{0}-0"),
        pytest.param(_names_another_topic, f"{_OTHER}-0, {_OTHER}-1", marks=needs_topic_ids),
        (_names_one_twice, "{0}-0, {0}-0"),
    ],
)
def test_an_answer_about_something_else(change: Any, instead: str, worker: ProxiedWorker) -> None:
    worker.on_offsets(Rewrite(change), times=None)
    source = worker.flow.source
    told = f"answered about {instead.format(source)}"
    worker.fails(worker.flow.group_id, f"asked about {source}-0, {source}-1", told, again=False)


# What the broker itself answers -----------------------------------------------------------------


def _raise_epoch(worker: ProxiedWorker) -> None:
    member = worker.writing._member
    worker.writing._member = replace(member, epoch=member.epoch + 1)


def _change_topic(worker: ProxiedWorker) -> None:
    for partition in (0, 1):
        worker.change_plan(partition, topic_id=uuid.uuid4())


def _change_group(worker: ProxiedWorker) -> None:
    worker.writing._settings = replace(worker.writing._settings, group_id="no-such-group")


def _fence(worker: ProxiedWorker) -> None:
    name = worker.worker.identity.transactional_id
    fence_producer(worker.connections, name, 60_000, deadline())


def _change_producer(worker: ProxiedWorker) -> None:
    worker.worker._identity = replace(worker.worker.identity, producer_id=1 << 40)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("disturb", "words", "again"),
    [
        # A member that is gone is in test_transaction.py: it was taken over.
        pytest.param(_raise_epoch, f"-1: {_REJECTED}", True, marks=needs_topic_ids),
        pytest.param(_change_group, "-1: 69 GROUP_ID_NOT_FOUND", True, marks=needs_topic_ids),
        # Looked up, the topic has another id than the one that the broker does not know.
        (_change_topic, "' was deleted and recreated", False),
        (_fence, "-1: 47 INVALID_PRODUCER_EPOCH", True),
        (_change_producer, "-1: 49 INVALID_PRODUCER_ID_MAPPING", True),
    ],
)
def test_the_brokers_own_answer(
    disturb: Any, words: str, worker: ProxiedWorker, *, again: bool
) -> None:
    writing = worker.writing
    before = writing._settings, writing._plan, writing._member
    worker.fails(f"{worker.flow.source}{words}", again=again, meanwhile=disturb)
    writing._settings, writing._plan, writing._member = before


# Whole queries ----------------------------------------------------------------------------------


def _run(spark: SparkSession, flow: Flow, **options: Any) -> list[BatchReport]:
    """A query whose only task commits both source partitions with one request."""
    return run_available(spark, flow, lambda f: relay(f).coalesce(1), **options)


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


@pytest.mark.slow
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
