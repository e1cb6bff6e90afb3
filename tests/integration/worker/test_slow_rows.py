"""Rows that come slowly, or that brokers accept slowly: transactions still end in time."""

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from kafka.protocol.producer import ProduceRequest

from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import fence_producer
from spark_eos._worker.arrivals import arrivals
from spark_eos._worker.dead_letter_settings import DeadLetterSettings
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.records import SourceRows
from spark_eos._worker.transaction_size import TransactionSize
from spark_eos.errors import WriteError
from support.dead_letters import create_dead_letter_topic
from support.flow import Flow
from support.members import deadline, started, writer_settings
from support.proxy import KafkaProxy
from support.proxy_faults import DropRequest, HoldRequest
from support.queries import until
from support.runs import running
from support.sinks import changed
from support.writing import row_batch, rows, take_over, task_outcome, writer


def test_sent_rows_are_committed_while_the_task_waits_for_more(flow: Flow) -> None:
    settings = changed(writer_settings(flow), max_transaction_ms=50)

    def batches() -> Iterator[pa.RecordBatch]:
        yield row_batch(flow, 0, 0, 1, 2)
        until(lambda: flow.committed(stable=False).get(0), lambda: "the first rows", timeout=20)
        # More rows of the last record may come, and do, so its offset must not be committed yet.
        assert flow.committed() == {0: 2}
        yield row_batch(flow, 0, 2, 2)
        assert flow.committed() == {0: 2}
        yield row_batch(flow, 0, 2, 3)
        until(lambda: flow.committed(stable=False) == {0: 3}, lambda: "the third record")

    with started(flow) as membership:
        outcome = task_outcome(membership, settings, batches())
    assert outcome.unwritten == []
    assert outcome.partitions[TopicPartition(flow.source, 0)].rows == 7
    assert outcome.partitions[TopicPartition(flow.source, 0)].next_offset == 4
    assert sorted(flow.values()) == ["0/0", "0/1", "0/2", "0/2", "0/2", "0/2", "0/3"]
    assert flow.committed() == {0: 4}


def test_a_transaction_ended_while_waiting_for_rows_is_no_wait() -> None:
    waits: list[float] = []

    def items() -> Iterator[int]:
        time.sleep(0.5)
        yield 1

    found = arrivals(items(), lambda: True, lambda: time.sleep(0.4), 0.1, waits.append)
    assert list(found) == [1]
    assert 0 <= waits[0] < 0.4


def test_rows_after_a_refused_transaction_are_not_written_either(
    flow: Flow,
) -> None:
    settings = changed(writer_settings(flow), max_transaction_records=1)
    with started(flow) as membership:

        def batches() -> Iterator[pa.RecordBatch]:
            yield row_batch(flow, 0, 0)
            take_over(flow, membership)
            # Ends the transaction of partition 0, whose rows alone were pending.
            yield row_batch(flow, 1, 0, 1)

        outcome = task_outcome(membership, settings, batches())
    assert {p.partition for p in outcome.unwritten} == {0, 1}
    assert flow.values() == []


# A broker that takes so long for large requests that their transaction is over before.
_BRIEFLY: dict[str, Any] = {"transaction_timeout_ms": 1_000, "max_transaction_ms": 900}


def _is_large(request: Any) -> bool:
    partitions = [p for topic in request.topic_data for p in topic.partition_data]
    return sum(len(p.records) for p in partitions) > 1_000


@pytest.mark.slow
def test_a_transaction_that_is_too_large_is_split_until_it_fits(
    proxied_flow: Flow, proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long a commit takes on this machine, the next transaction is larger.
    monkeypatch.setattr(TransactionSize, "after", lambda size, _seconds, _most: size.grown())
    large = proxy.on(ProduceRequest, DropRequest(), times=None, where=_is_large)
    with running(proxied_flow, **_BRIEFLY) as runs:
        report = runs.batch(500, 0)
        # The second attempt's transactions begin small, and grow until one is too large again.
        assert (report.attempts, report.rows_written) == (3, 500)
        assert all(0 <= ms < 100_000 for ms in report.milliseconds.values()), report.milliseconds
        # What has proved too much is not tried again at once.
        seen = len(large.hits)
        assert runs.batch(1_000, 0).attempts == 1
        assert len(large.hits) == seen
        proxy.reset()
        runs.written_once(1_000, 0)


def test_a_transaction_ended_before_its_offsets_was_too_slow(
    flow: Flow,
) -> None:
    with writer(flow, **_BRIEFLY) as found:
        found.add(rows(flow, 0, 0, 1))
        found._flush()
        time.sleep(1.1)
        # As brokers do within ten seconds.
        id_ = found._producer.identity.transactional_id
        with flow.connections() as connections:
            fence_producer(connections, id_, 1_000, deadline())
        with pytest.raises(TransactionError, match=r"2 rows .*longer than.*timeout_ms=1000") as e:
            found.commit()
    assert e.value.too_slow
    assert flow.values() == []


def test_rows_wait_if_brokers_would_take_earlier_rows_too_late(
    proxied_flow: Flow, proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_a_mebibyte_each(*offsets: int) -> SourceRows:
        return rows(proxied_flow, 0, *offsets, values=[b"x" * (1 << 19)] * len(offsets))

    limits: dict[str, Any] = {"max_transaction_bytes": 1 << 26, "max_transaction_ms": 3_000}
    with writer(proxied_flow, **limits) as found:
        found.add(half_a_mebibyte_each(*range(10)))
        found._flush()
        go_on = threading.Event()
        proxy.on(ProduceRequest, HoldRequest(go_on), times=None)
        found.add(half_a_mebibyte_each(*range(10, 30)))
        assert found._producer.records.unacknowledged == 20
        # At 10 rows in so many seconds, 20 more take so long.
        for age, within_3_s in [(1.0, True), (1.45, True), (1.55, False), (2.0, False)]:
            monkeypatch.setattr(found, "_age", lambda age=age: age)
            assert found._has_backlog() != within_3_s
        go_on.set()
        found.commit()


@pytest.mark.slow
def test_a_single_row_that_is_too_slow_is_no_dead_letter(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    dlq = create_dead_letter_topic(proxied_flow)
    proxy.on(ProduceRequest, DropRequest(), times=None)
    with running(proxied_flow, **_BRIEFLY, dead_letters=DeadLetterSettings(topic=dlq)) as runs:
        with pytest.raises(WriteError) as failure:
            runs.batch(20, 0)
        proxy.reset()
        runs.written_once(0, 0)
    reason = str(failure.value)
    row = f"the row of source {proxied_flow.source}-0 offset 0 alone"
    assert re.search(rf"with {row} was open for \d{{3,}} ms, longer than", reason)
    assert "transactions.timeout_ms=1000" in reason
    assert proxied_flow.written(dlq) == []
