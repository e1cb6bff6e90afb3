"""Executors in their own processes: one dies with an open transaction, and tasks run twice."""

import os
import signal
from pathlib import Path

import pytest

from chaos.processes import children, executors_of
from support.flow import Flow
from support.holding import (
    LONG_TRANSACTIONS,
    SMALL_BATCHES,
    SPECULATION,
    hold_written_once,
    produce_with_hold,
    until_held,
)
from support.queries import QueryProcess, slot_holders
from support.standalone import Standalone

# A cluster for each test.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def _executor_of_the_open_transaction(query: QueryProcess) -> int:
    (transactional_id,) = query.flow.open_transactions()
    slot = transactional_id.rpartition("/")[2]
    holders = slot_holders(query.flow.worker_directory)
    (worker,) = [pid for lock, pid in holders.items() if lock.endswith(f"/slot-{slot}.lock")]
    (executor,) = [pid for pid in executors_of(query.process.pid) if worker in children(pid)]
    return executor


def test_a_killed_executors_rows_are_written_by_a_second_attempt(
    flow: Flow, tmp_path: Path
) -> None:
    expected = produce_with_hold(flow)
    go = tmp_path / "go"
    with QueryProcess(
        flow,
        tmp_path / "log",
        master="local-cluster[2,1,1024]",
        config=SMALL_BATCHES,
        hold=[str(go), "hold"],
        **LONG_TRANSACTIONS,
    ) as query:
        until_held(query)
        os.kill(_executor_of_the_open_transaction(query), signal.SIGKILL)
        go.touch()
        assert query.wait(180) == 0, query.output()
        (report,) = query.reports()
    assert (report["attempts"], report["rows_written"]) == (2, 1_000)
    hold_written_once(flow, expected)


def test_speculative_copies_write_nothing_and_end_no_query(flow: Flow, tmp_path: Path) -> None:
    expected = produce_with_hold(flow)
    # Spark starts no copy on the host of the first attempt.
    with (
        Standalone(tmp_path, hosts=["127.0.0.1", "127.0.0.2"]) as cluster,
        QueryProcess(
            flow,
            tmp_path / "log",
            master=cluster.master,
            config={**SMALL_BATCHES, **SPECULATION, "spark.executor.memory": "512m"},
            # The first attempt never goes on.
            hold=[str(tmp_path / "never"), "hold"],
            hold_once=True,
            **LONG_TRANSACTIONS,
        ) as query,
    ):
        assert query.wait(240) == 0, query.output()
        (report,) = query.reports()
    assert (tmp_path / "never.waiting").exists()
    assert report["attempts"] > 1
    assert report["rows_written"] == 1_000
    hold_written_once(flow, expected)
