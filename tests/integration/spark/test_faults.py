"""Processes are killed and stopped during transactions; nothing is lost or duplicated.

Each query runs in its own processes, on the real broker.
"""

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from support.flow import Flow
from support.holding import (
    LONG_TRANSACTIONS,
    SMALL_BATCHES,
    hold_written_once,
    produce_with_hold,
    until_held,
)
from support.members import started
from support.queries import QueryProcess, run_available, slot_holders, until

# A Spark for each test.
pytestmark = pytest.mark.slow

# Spark's is that another query has logged the same batch.
_ENDS = ("FencedByNewerRunError", "CONCURRENT_STREAM_LOG_UPDATE")


def _held_query(flow: Flow, tmp_path: Path, name: str, **settings: Any) -> QueryProcess:
    """A query whose task waits, mid-transaction, at the row "hold" until a file appears."""
    config = {**SMALL_BATCHES, **settings.pop("config", {})}
    return QueryProcess(
        flow,
        tmp_path / f"{name}.log",
        hold=[str(tmp_path / "go"), "hold"],
        config=config,
        **settings,
    )


def test_killed_in_the_middle_of_a_transaction(
    flow: Flow, tmp_path: Path, spark_eos_session: SparkSession
) -> None:
    expected = produce_with_hold(flow)
    with _held_query(flow, tmp_path, "killed") as query:
        until_held(query)
    assert flow.open_transactions() != [], "the transaction must outlive its query"
    (tmp_path / "go").touch()
    # As on another host, where no worker happens to take the same transactional id.
    flow.worker_directory += "-elsewhere"
    reports = run_available(spark_eos_session, flow)
    assert sorted(flow.values()) == expected
    assert flow.open_transactions() == []
    assert flow.committed() == {0: 500, 1: 500}
    # Far less than transaction.timeout.ms, 60 s, and than the session timeout, 45 s.
    assert reports[0].milliseconds["start"] < 3_000


def test_after_a_killed_worker_the_next_run_writes_the_rest(
    flow: Flow, tmp_path: Path, spark_eos_session: SparkSession
) -> None:
    expected = produce_with_hold(flow)
    with _held_query(flow, tmp_path, "worker") as query:
        until_held(query)
        _kill_writers(flow)
        # Spark may learn of a dead worker only when it has rows for it.
        (tmp_path / "go").touch()
        assert query.wait() != 0
    reports = run_available(spark_eos_session, flow)
    assert sorted(flow.values()) == expected
    assert flow.open_transactions() == []
    assert reports[0].milliseconds["start"] < 3_000


def _kill_writers(flow: Flow) -> None:
    holders = slot_holders(flow.worker_directory)
    assert holders
    for pid in holders.values():
        os.kill(pid, signal.SIGKILL)


def test_a_retried_task_is_deferred_to_the_second_attempt(flow: Flow, tmp_path: Path) -> None:
    expected = produce_with_hold(flow)
    with _held_query(flow, tmp_path, "retried", master="local[2,4]") as query:
        until_held(query)
        _kill_writers(flow)
        (tmp_path / "go").touch()
        assert query.wait() == 0, query.output()
        (report,) = query.reports()
    assert report["attempts"] == 2
    # Should a worker die after it has committed and before it has said so, its rows are skipped.
    assert report["rows_written"] + report["rows_skipped"] == 1_000
    assert sorted(flow.values()) == expected
    assert flow.open_transactions() == []


def test_killed_between_two_chunks_it_goes_on_after_the_last_one(
    flow: Flow, tmp_path: Path, spark_eos_session: SparkSession
) -> None:
    expected = produce_with_hold(flow)
    with _held_query(flow, tmp_path, "chunks", max_transaction_records=100) as query:
        query.until(lambda: flow.committed().get(0, 0) >= 200, "committed chunks")
    # Workers may outlive their driver by a moment.
    until(lambda: not slot_holders(flow.worker_directory), lambda: "the end of all workers")
    # What a worker has left open holds offsets until the next run ends it.
    reached = flow.committed(stable=False)
    assert 200 <= reached[0] < 500
    (tmp_path / "go").touch()
    reports = run_available(spark_eos_session, flow)
    assert sum(r.rows_skipped for r in reports) == sum(reached.values())
    assert sorted(flow.values()) == expected


def test_a_zombie_task_that_wakes_after_a_takeover_is_fenced(
    flow: Flow, tmp_path: Path, spark_eos_session: SparkSession
) -> None:
    expected = produce_with_hold(flow)
    with _held_query(flow, tmp_path, "zombie") as query:
        until_held(query)
        writers = slot_holders(flow.worker_directory)
        assert writers
        for pid in writers.values():
            os.kill(pid, signal.SIGSTOP)
        # A newer run of the query, from a checkpoint of its own, as on another machine.
        (tmp_path / "go").touch()
        flow.checkpoint += "-newer"
        run_available(spark_eos_session, flow)
        assert sorted(flow.values()) == expected
        # Awake, the zombie goes on: it has the rest of its rows to write and to commit.
        with started(flow):
            for pid in writers.values():
                os.kill(pid, signal.SIGCONT)
            assert query.wait() != 0
    assert "was taken over by a newer run" in query.output()
    assert sorted(flow.values()) == expected
    assert flow.open_transactions() == []
    assert flow.committed() == {0: 500, 1: 500}


def test_the_older_of_two_runs_fails_and_names_the_newer(flow: Flow, tmp_path: Path) -> None:
    flow.produce(range(10))
    older = QueryProcess(flow, tmp_path / "older.log", available_now=False)
    with older:
        older.until(older.reports, "the first batch")
        flow.checkpoint += "-newer"
        newer = QueryProcess(
            flow,
            tmp_path / "newer.log",
            available_now=False,
            kafka={**flow.kafka, "client.id": "the-newer-run"},
        )
        with newer:
            newer.until(lambda: "STARTED" in newer.output(), "the newer run")
            flow.produce(range(10, 20))
            newer.until(newer.reports, "a batch of the newer run")
            # By now its member is the newer run's; it learns so with its next batch.
            flow.produce(range(20, 30))
            assert older.wait() != 0
            newer.until(lambda: flow.committed() == {0: 15, 1: 15}, "the rest")
    assert "taken over by a newer run: client id 'the-newer-run' on host /127.0.0.1" in (
        older.output()
    )
    assert sorted(map(int, flow.values())) == list(range(30))


def test_the_broker_restarts_under_a_running_query(flow_alone: Flow, tmp_path: Path) -> None:
    flow_alone.produce(range(100))
    with QueryProcess(flow_alone, tmp_path / "query.log", available_now=False) as query:
        query.until(query.reports, "the first batch")
        # Else markers may be missing for good: KAFKA-20734.
        assert len(flow_alone.values()) == 100
        flow_alone.broker.kill()
        time.sleep(1)
        flow_alone.broker.start()
        flow_alone.produce(range(100, 200))
        query.until(lambda: flow_alone.committed() == {0: 100, 1: 100}, "the rest")
        assert query.process.poll() is None
    assert sorted(map(int, flow_alone.values())) == list(range(200))
    until(lambda: not flow_alone.open_transactions(), lambda: "no open transactions")


def test_sparks_retry_does_not_hide_what_went_wrong(flow: Flow, tmp_path: Path) -> None:
    flow.produce(range(10))
    nameless = "array(struct(cast(null as string) as key, value))"
    settings = {"master": "local[2,4]", "headers": nameless}
    with QueryProcess(flow, tmp_path / "query.log", **settings) as query:
        assert query.wait() != 0
    # As the query's reason, not only in the log of a task.
    reason = (
        rf"batch 0 of group '{flow.group_id}': source {flow.source}-\d offset 0: a header is null"
    )
    assert re.search(reason, query.output())
    assert flow.written() == []


def test_of_two_runs_on_one_checkpoint_at_most_one_goes_on(
    flow: Flow, tmp_path: Path, spark_eos_session: SparkSession
) -> None:
    settings: dict[str, Any] = {"available_now": False, "max_offsets": 20}
    produced = 0

    def produce() -> None:
        nonlocal produced
        flow.produce(range(produced, produced + 20))
        produced += 20

    with QueryProcess(flow, tmp_path / "older.log", **settings) as older:
        produce()
        older.until(older.reports, "the first batch", 120)
        with QueryProcess(flow, tmp_path / "newer.log", **settings) as newer:

            def ended() -> list[QueryProcess]:
                produce()
                return [query for query in (older, newer) if query.process.poll() is not None]

            for query in until(ended, lambda: f"an end {newer.output()[-4000:]}", 240):
                assert query.wait() > 0
                assert any(error in query.output() for error in _ENDS), query.output()[-4000:]
    run_available(spark_eos_session, flow)
    assert sorted(map(int, flow.values())) == list(range(produced))
    assert flow.committed() == {0: produced // 2, 1: produced // 2}
    assert flow.open_transactions() == []


def test_a_run_whose_batch_another_run_has_written_meanwhile(flow: Flow, tmp_path: Path) -> None:
    expected = produce_with_hold(flow)
    with _held_query(flow, tmp_path, "older", **LONG_TRANSACTIONS) as older:
        until_held(older)
        with QueryProcess(flow, tmp_path / "newer.log") as newer:
            assert newer.wait(180) == 0, newer.output()
        (tmp_path / "go").touch()
        assert older.wait(180) > 0
    assert any(error in older.output() for error in _ENDS), older.output()[-4000:]
    hold_written_once(flow, expected)
