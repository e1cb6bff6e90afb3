"""A worker configures its connection to Spark so that Spark is answered at once."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_eos._worker.spark_connection import CutOffError, SparkConnection


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """The end of a TCP connection that delays its acknowledgements."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as here,
        server.accept()[0] as there,
    ):
        for _ in range(20):
            there.sendall(b"x")
            here.recv(1)
            here.sendall(b"x")
            there.recv(1)
        yield here


def test_workers_acknowledge_what_spark_sends_at_once(connection: socket.socket) -> None:
    assert _acknowledges_at_once(connection) == 0
    with _of_a_daemon(connection) as file:
        SparkConnection(file).acknowledge_at_once()
    assert _acknowledges_at_once(connection) == 1


def _of_a_daemon(spark: socket.socket) -> Any:
    return os.fdopen(os.dup(spark.fileno()), "rb", 65536)


def _of_a_process_of_its_own(spark: socket.socket) -> Any:
    return spark.makefile("rwb", 65536)


@pytest.mark.parametrize("made", [_of_a_daemon, _of_a_process_of_its_own])
def test_a_task_finds_its_connection_and_its_end(made: Callable[[socket.socket], Any]) -> None:
    def main(infile: Any, outfile: Any) -> SparkConnection:
        assert infile is outfile
        return SparkConnection.of_worker()

    here, spark = socket.socketpair()
    with here, made(here) as file:
        found = main(file, file)
        spark.sendall(b"number")
        assert list(found.whole(iter("ab"))) == ["a", "b"]
        assert file.read(6) == b"number"
        spark.close()
        with pytest.raises(CutOffError):
            list(found.whole(iter("ab")))
        found.acknowledge_at_once()


def test_workers_that_are_not_pysparks_are_refused() -> None:
    with pytest.raises(RuntimeError, match="not PySpark's own"):
        SparkConnection.of_worker()


def test_a_file_without_a_descriptor_is_left_alone() -> None:
    """As in workers that are not PySpark's own."""
    SparkConnection(object()).acknowledge_at_once()  # type: ignore[arg-type]


def test_a_default_timeout_does_not_reach_sparks_connection(connection: socket.socket) -> None:
    socket.setdefaulttimeout(5)
    try:
        with _of_a_daemon(connection) as file:
            SparkConnection(file).acknowledge_at_once()
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(connection.fileno())


def _acknowledges_at_once(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)


FREEZES = """
import gc
from spark_eos._worker.spark_connection import reduce_task_overhead

kept, counts = [], []
for _ in range(10):
    kept.append([[] for _ in range(1000)])
    reduce_task_overhead()
    counts.append(gc.get_freeze_count())
print([after - before for before, after in zip(counts, counts[1:])])
"""


@pytest.mark.parametrize("reused", [True, False])
def test_a_workers_first_tasks_exclude_what_is_alive(*, reused: bool) -> None:
    # PySpark collects all garbage between the tasks of a worker that runs several.
    own = {name: value for name, value in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    environment = own | {"SPARK_REUSE_WORKER": "1"} if reused else own
    made = subprocess.run(
        [sys.executable, "-c", FREEZES], env=environment, capture_output=True, check=True, text=True
    )
    grown = json.loads(made.stdout)
    if reused:
        assert all(each >= 1000 for each in grown[:7])
        assert grown[7:] == [0, 0]
    else:
        assert grown == [0] * 9
