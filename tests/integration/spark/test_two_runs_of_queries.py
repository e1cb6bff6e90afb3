"""Two runs of one direct query at the same time, on one checkpoint."""

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
from support.queries import QueryProcess, run_available, until

# A Spark for each run.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

# Spark's is that another query has logged the same batch.
_ENDS = ("FencedByNewerRunError", "CONCURRENT_STREAM_LOG_UPDATE")


@pytest.mark.proves("second-run")
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


@pytest.mark.proves("second-run")
def test_a_run_whose_batch_was_written_by_another_in_the_meantime(
    flow: Flow, tmp_path: Path
) -> None:
    expected = produce_with_hold(flow)
    go = tmp_path / "go"
    with QueryProcess(
        flow,
        tmp_path / "older.log",
        hold=[str(go), "hold"],
        config=SMALL_BATCHES,
        **LONG_TRANSACTIONS,
    ) as older:
        until_held(older)
        with QueryProcess(flow, tmp_path / "newer.log") as newer:
            assert newer.wait(180) == 0, newer.output()
        go.touch()
        assert older.wait(180) > 0
    assert any(error in older.output() for error in _ENDS), older.output()[-4000:]
    hold_written_once(flow, expected)
