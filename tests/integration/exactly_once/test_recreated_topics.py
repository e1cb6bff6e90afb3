"""Topics deleted and recreated while a query runs, on the real broker, without Spark.

If a source topic is deleted, the query ends; offsets of the old topic never reach the new topic. If
a target topic is deleted, only output committed to it is lost.
"""

import dataclasses
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
import pytest

from spark_eos._client.error_codes import Code
from spark_eos._client.settings import ClientSettings
from spark_eos._exactly_once import transaction
from spark_eos._exactly_once.transaction import TransactionWriter
from spark_eos._kafka import cluster
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.records import SourceRows
from spark_eos.errors import TopicNotFoundError
from support.flow import Flow
from support.members import deadline, started
from support.runs import BETWEEN, IN_JOB, running, settles_nothing_of_a_recreated_source
from support.writing import rows, speak_at_most, transactions

by_name_and_id = pytest.mark.usefixtures("_newest_version")


@pytest.fixture(params=["v5", "v6"])
def _newest_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "v5":
        speak_at_most(monkeypatch, {TxnOffsetCommitRequest.API_KEY: 5})


@contextmanager
def _writing(flow: Flow, **options: Any) -> Iterator[TransactionWriter]:
    with started(flow) as membership, transactions(flow, membership, **options) as writing:
        yield writing


def _id(flow: Flow, topic: str) -> str:
    with flow.connections() as connections:
        return str(cluster.topics(connections, [topic], deadline())[topic].topic_id)


# Source topics ------------------------------------------------------------------------------------


@by_name_and_id
def test_a_recreated_source_topic_takes_no_offset_of_the_old_one(flow: Flow) -> None:
    with _writing(flow) as writing:
        writing.add(rows(flow, 0, 0, 1))
        writing.commit()
        writing.add(rows(flow, 0, 2, 3))
        writing.add(rows(flow, 1, 5))
        old = _id(flow, flow.source)
        flow.recreate(flow.source)
        # More records than the old one had.
        flow.produce(range(40))
        began = time.monotonic()
        with pytest.raises(TransactionError, match="was deleted and recreated") as failure:
            writing.commit()
        # Not after the transaction's timeout.
        assert time.monotonic() - began < 40
    assert not failure.value.again
    for words in (flow.source, old, _id(flow, flow.source), "group_id", "checkpoint_location"):
        assert words in str(failure.value)
    assert flow.committed() == {}
    assert sorted(flow.values()) == ["0/0", "0/1"]
    assert flow.open_transactions() == []


@by_name_and_id
def test_a_source_topic_that_stays_away(flow: Flow) -> None:
    with _writing(flow, max_block_ms=300) as writing:
        writing.add(rows(flow, 0, 0, 1))
        flow.broker.delete_topic(flow.source)
        with pytest.raises(TransactionError, match=r"no longer exists.*max_block_ms") as failure:
            writing.commit()
    assert not failure.value.again
    assert flow.source in str(failure.value)
    assert flow.values() == []
    assert flow.open_transactions() == []


@by_name_and_id
def test_offsets_sent_to_a_topic_go_with_it(flow: Flow) -> None:
    with _writing(flow) as writing:
        writing.add(rows(flow, 0, 0, 1))
        writing._producer.records.flush(deadline())
        writing._send_offsets(deadline())
        flow.recreate(flow.source)
        # The broker's own doing; what is checked after the offsets' acceptance counts on it.
        writing._producer.commit(deadline())
        assert flow.committed() == {}


def test_an_id_that_the_broker_does_not_know_yet_is_sent_again(flow: Flow) -> None:
    class Late(Connections):
        """The broker does not know the topic when it is asked for the first time, or twice."""

        asked = 0

        def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
            answer = super().send(request, *arguments, **options)
            if request.API_KEY == TxnOffsetCommitRequest.API_KEY:
                self.asked += 1
                for partition in answer.topics[0].partitions if self.asked < 3 else ():
                    partition.error_code = Code.UNKNOWN_TOPIC_ID
            return answer

    with _writing(flow) as writing, closing(Late(ClientSettings(flow.kafka))) as late:
        writing._producer.connections = late
        writing.add(rows(flow, 0, 0, 1))
        writing.commit()
        assert late.asked == 3
        assert flow.committed() == {0: 2}
        assert sorted(flow.values()) == ["0/0", "0/1"]


@pytest.mark.parametrize("moment", [IN_JOB, BETWEEN])
def test_the_driver_does_not_settle_offsets_of_the_old_topic(flow: Flow, moment: str) -> None:
    settles_nothing_of_a_recreated_source(flow, moment)


def test_the_driver_waits_for_a_source_topic(flow: Flow) -> None:
    flow.broker.delete_topic(flow.source)
    gone = pytest.raises(TopicNotFoundError, match=rf"'{flow.source}'.* 2 s.*max_block_ms")
    # Enough for a busy broker to answer in.
    with running(flow, max_block_ms=2_000) as runs, gone:
        runs.batch(10, 10, without_output=10)
    create = threading.Timer(0.3, flow.broker.create_topic, [flow.source, flow.partitions])
    create.start()
    with running(flow) as runs:
        runs.batch(10, 10, without_output=10)
    create.join()
    assert flow.committed() == {0: 10, 1: 10}


# Target topics ------------------------------------------------------------------------------------


def _commit_with_retries(writing: TransactionWriter, found: SourceRows) -> list[str]:
    """Writes rows like the driver's attempts: retries, with nothing kept, if that may help."""
    reasons: list[str] = []
    for _ in range(4):
        failure = _commit(writing, found)
        if failure is None:
            return reasons
        reasons.append(str(failure))
        if not failure.again:
            break
        writing.abort()
        writing._producer.drop()
    raise AssertionError(reasons)


def _commit(writing: TransactionWriter, found: SourceRows) -> TransactionError | None:
    try:
        writing.add(found)
        writing.commit()
    except TransactionError as error:
        return error
    return None


@pytest.mark.parametrize("partitions", [2, 1, 4])
def test_a_target_topic_recreated_between_transactions(flow: Flow, partitions: int) -> None:
    with _writing(flow) as writing:
        # Enough keyless rows for every partition of the old topic to be known and used.
        _commit_with_retries(writing, rows(flow, 0, *range(60)))
        flow.recreate(flow.target, partitions)
        began = time.monotonic()
        _commit_with_retries(writing, rows(flow, 0, *range(60, 90)))
        _commit_with_retries(writing, rows(flow, 0, *range(90, 120)))
        assert time.monotonic() - began < 40
    assert sorted(flow.values()) == sorted(f"0/{n}" for n in range(60, 120))
    assert flow.committed() == {0: 120}


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [2, 1])
def test_a_target_topic_recreated_in_an_open_transaction(
    flow: Flow, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A transaction that has been open for long enough.
    monkeypatch.setattr(transaction, "_LONG", 0.0)
    # Rows for every partition.
    client = ClientSettings({**flow.kafka, "sticky.partitioning.linger.ms": 0})
    with _writing(flow, client=client) as writing:
        writing.add(rows(flow, 0, *range(20)))
        writing._producer.records.flush(deadline())
        flow.recreate(flow.target, partitions)
        failure = _commit(writing, rows(flow, 0, *range(20, 40)))
        assert failure is not None
        assert failure.again
        assert f"target topic '{flow.target}' was deleted and recreated" in str(failure)
        writing.abort()
        assert flow.committed() == {}
        _commit_with_retries(writing, rows(flow, 0, *range(40)))
        _commit_with_retries(writing, rows(flow, 0, 40))
    # All of the transaction, not only what was written to the new topic.
    assert sorted(flow.values()) == sorted(f"0/{n}" for n in range(41))
    assert flow.committed() == {0: 41}


@pytest.mark.parametrize("how", ["recreated", "more partitions"])
def test_a_row_for_a_partition_that_its_topic_has_by_now(flow: Flow, how: str) -> None:
    with _writing(flow) as writing:
        _commit_with_retries(writing, rows(flow, 0, 0))
        if how == "recreated":
            flow.recreate(flow.target, 4)
        else:
            flow.broker.add_partitions(flow.target, 4)
        found = rows(flow, 0, 1)
        fourth = found.rows.append_column("partition", pa.array([3], pa.int32()))
        (reason,) = _commit_with_retries(writing, dataclasses.replace(found, rows=fourth))
        assert how in reason
    assert flow.written()[-1].partition() == 3
    assert flow.committed() == {0: 2}


def test_rows_after_a_commit_to_a_recreated_topic(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the topic were created anew right before the transaction ends, however long it takes.
    monkeypatch.setattr(transaction, "_LONG", 600.0)
    with _writing(flow) as writing:
        writing.add(rows(flow, 0, 0, 1))
        writing._producer.records.flush(deadline())
        flow.recreate(flow.target)
        # Committed right before its end or right after: nobody can tell. It is gone with the topic.
        writing.commit()
        _commit_with_retries(writing, rows(flow, 0, 2))
        _commit_with_retries(writing, rows(flow, 0, 3))
    assert sorted(flow.values()) == ["0/2", "0/3"]
    assert flow.committed() == {0: 4}


def test_a_target_topic_that_is_deleted_and_comes_back(flow: Flow) -> None:
    with _writing(flow) as writing:
        _commit_with_retries(writing, rows(flow, 0, 0, 1))
        flow.broker.delete_topic(flow.target)
        create = threading.Timer(1.5, flow.broker.create_topic, [flow.target, flow.partitions])
        create.start()
        _commit_with_retries(writing, rows(flow, 0, 2, 3))
        create.join()
    assert sorted(flow.values()) == ["0/2", "0/3"]
    assert flow.committed() == {0: 4}


@pytest.mark.parametrize("known", [True, False], ids=["written to before", "after a failure"])
def test_a_target_topic_that_stays_away(flow: Flow, *, known: bool) -> None:
    with _writing(flow, max_block_ms=300) as writing:
        writing.add(rows(flow, 0, 0, 1))
        writing.commit()
        flow.broker.delete_topic(flow.target)
        if not known:
            writing._producer.drop()
        began = time.monotonic()
        failure = _commit(writing, rows(flow, 0, 2, 3))
        # Long before librdkafka gives up, which it does at the transaction's timeout.
        assert time.monotonic() - began < 40
    assert failure is not None
    assert not failure.again
    assert re.search(rf"'{flow.target}' does not exist.*max_block_ms", str(failure))
    assert flow.committed() == {0: 2}


@pytest.mark.slow
def test_a_full_queue_of_records_for_a_topic_that_is_gone(flow: Flow) -> None:
    client = ClientSettings({**flow.kafka, "queue.buffering.max.messages": 10})
    with _writing(flow, max_block_ms=300, client=client) as writing:
        writing.add(rows(flow, 0, 0, 1))
        writing.commit()
        flow.broker.delete_topic(flow.target)
        with pytest.raises(TransactionError, match=r"does not exist.*max_block_ms"):
            writing.add(rows(flow, 0, *range(2, 40)))
        writing.abort()
    assert flow.committed() == {0: 2}
