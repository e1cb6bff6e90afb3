"""A start that gets no executor says what it waits for, and does not wait for ever."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from spark_eos._spark import executor_packages
from spark_eos._spark.executor_packages import check_executors
from spark_eos.errors import DeadlineExceededError
from support.queries import until


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_packages, "_checked", set())
    monkeypatch.setattr(executor_packages, "_SAY_SECONDS", 0.5)


@contextmanager
def _all_cores_taken(context: Any, free: Path) -> Iterator[None]:
    """Each core has a task of another job, until the file is there."""
    path = str(free)

    def hold(_: Any) -> None:
        end = time.monotonic() + 120
        while not Path(path).exists() and time.monotonic() < end:
            time.sleep(0.05)

    cores = context.defaultParallelism
    other = InheritableThread(
        target=lambda: context.parallelize(range(cores), cores).foreachPartition(hold)
    )
    other.start()
    tracker = context.statusTracker()

    def running() -> int:
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return sum(stage.numActiveTasks for stage in stages if stage is not None)

    try:
        until(lambda: running() == cores, lambda: "the cores are not taken")
        yield
    finally:
        free.touch()
        other.join()


@pytest.mark.slow
def test_a_start_that_gets_no_executor_ends(
    spark_eos_session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(executor_packages, "_LIMIT_SECONDS", 2.0)
    context = spark_eos_session.sparkContext
    with (
        _all_cores_taken(context, tmp_path / "free"),
        caplog.at_level(logging.WARNING),
        pytest.raises(
            DeadlineExceededError, match=r"no executor .* in 2 s.*spark\.executor\.instances"
        ),
    ):
        check_executors(context, ("pyarrow",))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert all("waiting for an executor" in line and "executors" in line for line in said)
    # Nothing of it is left: not its job, nor its tag on the caller's next ones.
    assert context.statusTracker().getActiveJobsIds() == []
    assert list(context.getJobTags()) == []
    check_executors(context, ("pyarrow",))


def test_one_that_gets_it_late_goes_on(
    spark_eos_session: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = spark_eos_session.sparkContext
    free = tmp_path / "free"
    with _all_cores_taken(context, free), caplog.at_level(logging.WARNING):
        timer = threading.Timer(1.2, free.touch)
        timer.start()
        check_executors(context, ("pyarrow",))
        timer.join()
    assert {record.levelname for record in caplog.records} == {"WARNING"}
