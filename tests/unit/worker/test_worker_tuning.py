"""What a worker does to its connection with Spark, to have it answer at once."""

import os
import socket
from collections.abc import Iterator

import pytest

from spark_eos._worker.spark_connection import SparkConnection
from spark_eos._worker.worker_tuning import reduce_task_overhead


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
    reduce_task_overhead(SparkConnection(connection.fileno()))
    assert _acknowledges_at_once(connection) == 1


def test_a_default_timeout_does_not_reach_sparks_connection(connection: socket.socket) -> None:
    socket.setdefaulttimeout(5)
    try:
        reduce_task_overhead(SparkConnection(connection.fileno()))
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(connection.fileno())


def _acknowledges_at_once(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
