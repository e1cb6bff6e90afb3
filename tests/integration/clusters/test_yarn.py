"""A job on a real YARN and HDFS, on executors with nothing installed."""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from spark_eos.verify import Verdict
from support.flow import Flow
from support.hadoop import APPLICATION_MASTER, EXECUTOR
from support.holding import SPECULATION
from support.planting import look
from support.stored_files import stored_files
from support.yarn_jobs import Yarn, yarn_with_packages

pytestmark = [
    pytest.mark.skipif("SPARK_EOS_CLUSTERS" not in os.environ, reason="make test-clusters runs it"),
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]

_BATCH: Final = 50_000
# The size of a record lets a batch take seconds.
_PADDING: Final = b"x" * 500
_BY_BATCH: Final = ("--available-now", "--max-offsets-per-trigger", str(_BATCH))


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with yarn_with_packages(tmp_path_factory.mktemp("yarn")) as found:
        yield found


def _produce(flow: Flow, batches: int, first: int = 0) -> None:
    numbers = range(first * _BATCH, (first + batches) * _BATCH)
    flow.produce((b"%d " % number + _PADDING for number in numbers), key=lambda v: v.split()[0])


def _written_once(flow: Flow, batches: int) -> None:
    prefix = f"spark-eos/{flow.group_id}/"
    found = look(flow, key=True, prefix=prefix, complete=True, timeout=30)
    assert found.verdict is Verdict.SOUND, (found.anomalies, found.unjudged)
    assert found.records_in == found.records_out == batches * _BATCH


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_executors_that_have_only_what_is_shipped(
    flow: Flow, yarn: Yarn, tmp_path: Path, mode: str
) -> None:
    bare = [yarn.python, "-I", "-c", "import spark_eos"]
    assert b"No module named" in subprocess.run(bare, capture_output=True, check=False).stderr
    _produce(flow, 2)
    with yarn.relay(flow, mode, log=tmp_path / "log", arguments=_BY_BATCH) as job:
        job.until(lambda: yarn.hadoop.containers(EXECUTOR), "an executor")
        job.succeeds()
    _written_once(flow, 2)
    assert _finished_batches(flow, yarn) == 2


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_an_executor_is_killed_in_its_transaction(
    flow: Flow, yarn: Yarn, tmp_path: Path, mode: str
) -> None:
    _produce(flow, 3)
    with yarn.relay(flow, mode, log=tmp_path / "log", arguments=_BY_BATCH) as job:
        _, container = job.writer()
        (executor,) = (
            pid for pid, at in yarn.hadoop.containers(EXECUTOR).items() if at == container
        )
        os.kill(executor, signal.SIGKILL)
        job.succeeds()
        assert re.search("attempts=[2-9]", job.text()), job.timeout_message("a further attempt")
    _written_once(flow, 3)


def test_a_driver_is_killed_and_yarn_starts_another_one(
    flow: Flow, yarn: Yarn, tmp_path: Path
) -> None:
    _produce(flow, 3)
    with yarn.relay(flow, "cluster", log=tmp_path / "log", arguments=_BY_BATCH) as job:
        job.writer()
        ((driver, container),) = yarn.hadoop.containers(APPLICATION_MASTER).items()
        assert "_01_000001" in container.name
        os.kill(driver, signal.SIGKILL)
        job.until(lambda: _second_driver(yarn), "YARN's second attempt")
        job.succeeds()
    _written_once(flow, 3)


def _second_driver(yarn: Yarn) -> bool:
    found = yarn.hadoop.containers(APPLICATION_MASTER).values()
    return any("_02_000001" in container.name for container in found)


def test_a_lost_nodes_driver_wakes_up_during_a_second_attempt(
    flow: Flow, yarn: Yarn, tmp_path: Path
) -> None:
    """YARN can't end the node's processes, which continue."""
    _produce(flow, 4)
    with yarn.relay(flow, "cluster", log=tmp_path / "log", arguments=_BY_BATCH) as job:
        job.writer()
        ((_, container),) = yarn.hadoop.containers(APPLICATION_MASTER).items()
        first = [pid for pid, at in yarn.hadoop.containers().items() if at == container]
        with yarn.hadoop.lost_node(container):
            _signal(first, signal.SIGSTOP)
            before = _finished_batches(flow, yarn)
            job.until(lambda: _second_driver(yarn), "YARN's second attempt")
            job.until(lambda: _finished_batches(flow, yarn) > before, "a batch of the second")
            _signal(first, signal.SIGCONT)
            job.succeeds()
            job.until_gone(first)
    _written_once(flow, 4)


def _finished_batches(flow: Flow, yarn: Yarn) -> int:
    files = stored_files(f"{yarn.hadoop.home}/checkpoints/{flow.name}")
    return sum(path.removeprefix("commits/").isdecimal() for path in files.sizes("commits"))


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def test_a_task_that_hangs_is_copied_on_another_node(
    flow: Flow, yarn: Yarn, tmp_path: Path
) -> None:
    _produce(flow, 2)
    log = tmp_path / "log"
    with yarn.relay(flow, "client", log=log, arguments=_BY_BATCH, config=SPECULATION) as job:
        worker, _ = job.writer()
        os.kill(worker, signal.SIGSTOP)
        job.succeeds()
        assert "as speculatable" in job.text()
        assert re.search("attempts=[2-9]", job.text()), job.timeout_message("a further attempt")
    _written_once(flow, 2)


def test_executors_that_come_and_go(flow: Flow, yarn: Yarn, tmp_path: Path) -> None:
    """Dynamic allocation: another executor for a backlog, decommissioned when idle."""
    config = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        "spark.dynamicAllocation.executorIdleTimeout": "5s",
        "spark.decommission.enabled": "true",
        "spark.executor.instances": "1",
    }

    def executors(number: int) -> Callable[[], bool]:
        return lambda: len(yarn.hadoop.containers(EXECUTOR)) == number

    def written(batches: int) -> Callable[[], bool]:
        return lambda: sum(flow.committed().values()) == batches * _BATCH

    with yarn.relay(flow, "client", log=tmp_path / "log", arguments=(), config=config) as job:
        for load in range(2):
            job.until(executors(1), "a single executor")
            _produce(flow, 2, first=2 * load)
            job.until(executors(2), "another executor")
            job.until(written(2 * load + 2), "its end")
    _written_once(flow, 4)
