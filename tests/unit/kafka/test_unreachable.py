"""A cluster that does not answer, and what is logged, and left, of the wait for it."""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable

import pytest

from spark_eos._client.connections import ConnectionManager
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka import cluster, connection
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos.errors import DeadlineExceededError
from spark_eos.verify.cluster import Cluster
from support.client_settings import SERVERS


def test_what_is_waited_for_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connection._SILENT < 3
    monkeypatch.setattr(connection, "_SILENT", 1)
    server = "127.0.0.1:1"
    settings = ClientSettings({**SERVERS, "bootstrap.servers": server})
    with (
        contextlib.closing(Connections(settings)) as connections,
        pytest.raises(DeadlineExceededError, match=f"no broker of .*{server}"),
    ):
        cluster.cluster_id(connections, Deadline(4, "connect_timeout_ms"))
    (found,) = caplog.records
    assert found.levelno == logging.WARNING
    assert found.getMessage().startswith(
        f"waiting for a broker of bootstrap.servers='{server}', up to 4 s (connect_timeout_ms): "
        f"{server} (PLAINTEXT): "
    )
    assert "ECONNREFUSED" in found.getMessage()


def test_a_silent_name_server_takes_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ended.wait(60))
    settings = ClientSettings({**SERVERS, "bootstrap.servers": "broker.test:9092"})
    began = time.monotonic()
    with (
        contextlib.closing(Connections(settings)) as connections,
        pytest.raises(DeadlineExceededError, match="name server"),
    ):
        connections.brokers(Deadline(1, "connect_timeout_ms"))
    ended.set()
    assert time.monotonic() - began < 10


def test_a_name_is_looked_up_even_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "spark-eos-lookup":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    settings = ClientSettings({**SERVERS, "bootstrap.servers": "127.0.0.1:1"})
    with (
        contextlib.closing(Connections(settings)) as connections,
        pytest.raises(DeadlineExceededError, match="ECONNREFUSED"),
    ):
        connections.brokers(Deadline(1, "connect_timeout_ms"))


def _connect(settings: ClientSettings) -> None:
    with contextlib.closing(Connections(settings)) as connections:
        connections.brokers(Deadline(4, "connect_timeout_ms"))


def _verify(settings: ClientSettings) -> None:
    Cluster(settings, 4).close()


@pytest.mark.parametrize("reach", [_connect, _verify])
def test_an_interrupted_wait_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch, reach: Callable[[ClientSettings], None]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ConnectionManager, "reach", interrupted)
    before = {*threading.enumerate()}
    with pytest.raises(KeyboardInterrupt):
        reach(ClientSettings(SERVERS))
    assert {*threading.enumerate()} <= before
