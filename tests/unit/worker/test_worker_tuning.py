"""What a worker does to its connection with Spark, to have it answer at once."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_eos._worker import worker_tuning


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


@pytest.fixture
def first_task() -> Iterator[None]:
    """As in a worker that has yet to run its first task."""
    worker_tuning._at_first_task.cache_clear()
    yield
    worker_tuning._at_first_task.cache_clear()


@pytest.mark.usefixtures("first_task")
def test_workers_acknowledge_what_spark_sends_at_once(connection: socket.socket) -> None:
    assert _acknowledges_at_once(connection) == 0
    worker_tuning.reduce_task_overhead()
    assert _acknowledges_at_once(connection) == 1


@pytest.mark.usefixtures("first_task")
def test_a_number_that_names_another_file_by_now_is_left_alone(
    connection: socket.socket, tmp_path: Path
) -> None:
    worker_tuning.reduce_task_overhead()
    number = connection.detach()
    with (tmp_path / "another").open("w") as another:
        os.dup2(another.fileno(), number)
        before = _open_files()
        worker_tuning.reduce_task_overhead()
        assert _open_files() == before
    os.close(number)


@pytest.mark.usefixtures("first_task")
def test_a_default_timeout_does_not_reach_sparks_connection(connection: socket.socket) -> None:
    socket.setdefaulttimeout(5)
    try:
        worker_tuning.reduce_task_overhead()
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(connection.fileno())


def _open_files() -> set[str]:
    return {file.name for file in Path("/proc/self/fd").iterdir()}


def _acknowledges_at_once(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
