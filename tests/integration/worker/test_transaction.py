"""One worker's transactions on the real broker, without Spark."""

import time
from typing import Any

import pyarrow as pa
import pytest

from spark_eos._exactly_once.transaction import TransactionWriter
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.transactions import fence_producer
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos.options import Transactions as Limits
from support.flow import Flow
from support.members import deadline, started, writer_settings
from support.sinks import changed
from support.writing import refused, row_batch, rows, take_over, task_outcome, transactions, writer


@pytest.mark.parametrize("version", [5, 6])
def test_rows_and_offsets_are_committed_together(flow: Flow, version: int) -> None:
    with writer(flow, version=version) as writing:
        writing.add(rows(flow, 0, 0, 1))
        writing.add(rows(flow, 1, 7))
        assert flow.committed() == {}
        began = time.monotonic()
        writing.commit()
        took = (time.monotonic() - began) * 1000
        assert sorted(flow.values()) == ["0/0", "0/1", "1/7"]
        counters = writing.counters
        assert 0 < counters.flush_ms + counters.offsets_ms + counters.commit_ms <= took
        # Two answers of brokers take longer.
        assert counters.commit_ms > 0.05
        assert counters.timestamps_adjusted == 0
        assert flow.committed() == {0: 2, 1: 8}
        assert writing.counters.transactions == 1


def test_a_transaction_ends_with_its_last_record(flow: Flow) -> None:
    """However many rows are passed at once, and from whichever partition."""
    settings = changed(writer_settings(flow), transactions=Limits(max_records=1_500))
    batches = [row_batch(flow, 0, *range(1_000)), row_batch(flow, 1, *range(3_500))]
    with started(flow) as membership:
        planned: dict[str, Any] = {"start": 0, "end": 10_000}
        outcome = task_outcome(membership, settings, iter(batches), **planned)
    assert outcome.counters.transactions == 3
    for partition in (0, 1):
        written = [m for m in flow.written() if (m.value() or b"").startswith(b"%d/" % partition)]
        assert len(written) == (1_000, 3_500)[partition]
    assert flow.committed() == {0: 1_000, 1: 3_500}


def test_the_rows_of_one_record_stay_in_one_transaction(flow: Flow) -> None:
    """Its offset is committed with all of them, however many Spark passes at once."""
    settings = changed(writer_settings(flow), transactions=Limits(max_records=10))
    batches = [row_batch(flow, 0, *[0] * 15), row_batch(flow, 0, *[0] * 10, *[1] * 25)]
    with started(flow) as membership:
        outcome = task_outcome(membership, settings, iter(batches), start=0, end=2)
    assert outcome.counters.transactions == 2
    assert sorted(flow.values()) == ["0/0"] * 25 + ["0/1"] * 25


@pytest.mark.parametrize("end", ["abort", "drop"])
def test_a_transaction_that_is_given_up_leaves_no_trace(flow: Flow, end: str) -> None:
    with writer(flow) as writing:
        writing.add(rows(flow, 0, 0, 1))
        writing._producer.records.flush(deadline())
        assert flow.open_transactions() != []
        (writing.abort if end == "abort" else writing._producer.close)()
        assert (flow.values(), flow.committed(), flow.open_transactions()) == ([], {}, [])
    with writer(flow) as writing:
        writing.add(rows(flow, 0, 0, 1))
        writing.commit()
        assert sorted(flow.values()) == ["0/0", "0/1"]


@pytest.mark.parametrize("version", [5, 6])
def test_members_that_were_taken_over_commit_nothing(flow: Flow, version: int) -> None:
    with started(flow) as membership, transactions(flow, membership, version) as writing:
        take_over(flow, membership)
        for partition in (0, 1):
            writing.add(rows(flow, partition, 0))
        reason = f"{flow.source}-0: 25 UNKNOWN_MEMBER_ID"
        assert refused(flow, writing, reason).again


def test_a_producer_fenced_before_its_commit_commits_nothing(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writer(flow) as writing:
        writing.add(rows(flow, 0, 0, 1))
        send = writing._send_offsets

        def send_and_be_fenced(limit: Deadline) -> None:
            send(limit)
            (transactional_id,) = flow.open_transactions()
            with flow.connections() as connections:
                fence_producer(connections, transactional_id, 60_000, deadline())

        monkeypatch.setattr(writing, "_send_offsets", send_and_be_fenced)
        assert refused(flow, writing, "commit_transaction.*_FENCED").again


def test_the_broker_restarts_in_the_middle_of_a_transaction(flow_alone: Flow) -> None:
    with writer(flow_alone) as writing:
        writing.add(rows(flow_alone, 0, 0, 1))
        flow_alone.broker.kill()
        flow_alone.broker.start()
        failure: TransactionError | None = None
        try:
            writing.commit()
        except TransactionError as error:
            failure = error
        # Either way it is whole, and only what did not commit is to be written again.
        assert failure is None or failure.again
        assert sorted(flow_alone.values()) == ([] if failure else ["0/0", "0/1"])
        assert flow_alone.committed() == ({} if failure else {0: 2})
        assert flow_alone.open_transactions() == []


@pytest.mark.slow
def test_an_idle_producer_is_dropped_without_the_cluster(flow_alone: Flow) -> None:
    """A worker that then serves another query does not wait for lost brokers."""
    with started(flow_alone) as membership:
        with transactions(flow_alone, membership) as writing:
            writing.add(rows(flow_alone, 0, 0, 1))
            writing.commit()
            # Else the markers may be missing for good: KAFKA-20734.
            assert flow_alone.merged_values() == ["0/0", "0/1"]
            flow_alone.broker.kill()
            began = time.monotonic()
        elapsed = time.monotonic() - began
        flow_alone.broker.start()
        # Nor for connect_timeout_ms, which is 20 s here.
        assert elapsed < 15
        # Whoever takes its place writes on.
        with transactions(flow_alone, membership) as writing:
            writing.add(rows(flow_alone, 0, 2))
            writing.commit()
    assert sorted(flow_alone.values()) == ["0/0", "0/1", "0/2"]


def test_an_unforeseen_error_names_all_rows_among_which_it_was(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise TypeError("no such thing")

    monkeypatch.setattr(TransactionWriter, "add", fail)
    with started(flow) as membership:
        batches = iter([row_batch(flow, 0, 3, 4, 7, 8)])
        outcome = task_outcome(membership, writer_settings(flow), batches)
    message = "source {}-0 offsets 3 to 7: TypeError: no such thing"
    assert (outcome.failed, outcome.reason) == (True, message.format(flow.source))


def test_only_the_last_record_of_a_batch_is_held_back(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []
    add = TransactionWriter.add

    def counted(self: TransactionWriter, part: Any, *more: Any) -> None:
        parts.append(part.rows.num_rows)
        add(self, part, *more)

    monkeypatch.setattr(TransactionWriter, "add", counted)
    both = pa.concat_batches([row_batch(flow, 0, 0, 1, 2), row_batch(flow, 1, 0, 1, 2)])
    with started(flow) as membership:
        task_outcome(membership, writer_settings(flow), iter([both]), start=0, end=3)
    assert parts == [3, 2, 1]
    assert flow.committed() == {0: 3, 1: 3}
