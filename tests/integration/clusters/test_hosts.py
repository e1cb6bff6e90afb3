"""Executors on separate hosts that are lost or cut off from the network during a transaction."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.flow import Flow
from support.holding import (
    LONG_TRANSACTIONS,
    SMALL_BATCHES,
    hold_written_once,
    produce_with_hold,
    until_held,
)
from support.hosts import THIS_HOST, Hosts, has_network_of_its_own
from support.queries import QueryProcess, slot_holders, until
from support.standalone import Standalone

pytestmark = [
    pytest.mark.skipif(
        "SPARK_EOS_CLUSTERS" not in os.environ or not has_network_of_its_own(),
        reason="make test-clusters runs it, in a network of its own",
    ),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

_CONFIG = {
    **SMALL_BATCHES,
    "spark.executor.memory": "512m",
    "spark.driver.bindAddress": THIS_HOST,
    "spark.driver.host": THIS_HOST,
    # Until a silent executor is given up.
    "spark.network.timeout": "15s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "2s",
}


@contextmanager
def _query(flow: Flow, place: Path, **settings: Any) -> Iterator[tuple[QueryProcess, Hosts]]:
    """A query whose first task waits at the held row, on one of two hosts."""
    port = int(flow.bootstrap_servers.rpartition(":")[2])
    with (
        Hosts(2, directory=Path(flow.worker_directory), port=port, logs=place) as hosts,
        Standalone(place, hosts.addresses, master=THIS_HOST, on_host=hosts.on) as cluster,
        QueryProcess(
            flow,
            place / "log",
            master=cluster.master,
            config=_CONFIG,
            hold=[str(place / "go"), "hold"],
            hold_once=True,
            **LONG_TRANSACTIONS,
            **settings,
        ) as query,
    ):
        until_held(query)
        yield query, hosts


def _writer(query: QueryProcess, hosts: Hosts) -> tuple[int, str]:
    """The worker with the open transaction, and its host."""
    (transactional_id,) = query.flow.open_transactions()
    _, node, slot = transactional_id.rsplit("/", 2)
    node = node.rpartition("-")[0]  # without the inode of the slot's lock file
    (host,) = (
        host
        for host in hosts.addresses
        if node in [file.read_text() for file in hosts.files(host).glob("node-*")]
    )
    holders = slot_holders(query.flow.worker_directory, hosts.processes(host))
    (worker,) = (pid for lock, pid in holders.items() if lock.endswith(f"/slot-{slot}.lock"))
    return worker, host


def _waits_for_kafka(worker: int) -> bool:
    """Return True if a worker has all its rows; until then, it can only be waiting for a socket."""
    for _ in range(5):
        with suppress(OSError):  # it is gone
            if "futex" in Path(f"/proc/{worker}/wchan").read_text():
                time.sleep(0.1)
                continue
        return False
    return True


def _executor_of(worker: int) -> int:
    """The JVM that started a worker."""
    process = worker
    while Path(f"/proc/{process}/comm").read_text() != "java\n":
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process


def test_a_lost_host(flow: Flow, tmp_path: Path) -> None:
    expected = produce_with_hold(flow)
    with _query(flow, tmp_path) as (query, hosts):
        _, host = _writer(query, hosts)
        hosts.lose(host)
        assert query.wait(240) == 0, query.output()
        (report,) = query.reports()
    assert report["rows_written"] == 1_000
    hold_written_once(flow, expected)


def test_a_host_that_is_cut_off_comes_back(flow: Flow, tmp_path: Path) -> None:
    """Its worker continues its transaction after others have written those rows."""
    expected = produce_with_hold(flow)
    with _query(flow, tmp_path, available_now=False) as (query, hosts):
        worker, host = _writer(query, hosts)
        with hosts.cut_off(host):
            query.until(lambda: flow.committed().get(0) == 500, "the other host's rows")
            (tmp_path / "go").touch()
            until(lambda: _waits_for_kafka(worker), lambda: "the last row of the first task")
            # Spark ends an executor on its return, and the worker with it.
            executor = _executor_of(worker)
            os.kill(executor, signal.SIGSTOP)
        until(lambda: not _waits_for_kafka(worker), lambda: "the end of the first task")
        with suppress(ProcessLookupError):  # on a slow machine Spark has killed it
            os.kill(executor, signal.SIGCONT)
        until(lambda: worker not in hosts.processes(host), lambda: "the end of the executor")
    hold_written_once(flow, expected)
