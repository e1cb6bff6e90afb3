"""The kafka-python internals that spark-eos uses work as expected on a real broker."""

import contextlib
import gc
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.net.sasl.oauth import SaslMechanismOAuth

from spark_eos._client import kafka_python
from spark_eos._client.kafka_python import (
    ApiVersionsRequest,
    EventLoop,
    MetadataRequest,
    NodeConnections,
    api_name,
    closed_by_peer,
)
from spark_eos._client.oauth import TokenProvider
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka import cluster
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos.errors import AuthenticationError, DeadlineExceededError
from spark_eos.testing import EmbeddedKafka
from support.members import deadline
from support.queries import until


class _Watched(NodeConnections):
    """NodeConnections that record the arguments of their hooks, and the names of requests."""

    def __init__(self, selector: Any, configuration: dict[str, Any]) -> None:
        self.checks = 0
        self.ends: list[tuple[str, BaseException, bool]] = []
        self.sent: list[str] = []
        super().__init__(selector, configuration)

    def check(self) -> None:
        self.checks += 1

    def failed(self, address: str, error: BaseException, *, reached: bool) -> None:
        self.ends.append((address, error, reached))

    def send(self, request: Any, *arguments: Any, **named: Any) -> Any:
        self.sent.append(api_name(request))
        return super().send(request, *arguments, **named)


@contextlib.contextmanager
def _connections(servers: str, **settings: str) -> Iterator[tuple[EventLoop, _Watched]]:
    configuration = ClientSettings({"bootstrap.servers": servers, **settings}).for_kafka_python()
    loop = EventLoop(configuration)
    manager = _Watched(loop, configuration)
    try:
        yield loop, manager
    finally:
        loop.end(manager)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as own:
        yield own


@pytest.fixture
def connected(broker: EmbeddedKafka) -> Iterator[tuple[EventLoop, _Watched]]:
    with _connections(broker.bootstrap_servers) as (loop, manager):
        manager.reach(30)
        yield loop, manager


_Connected = tuple[EventLoop, _Watched]


def test_each_connection_learns_its_brokers_own_versions(connected: _Connected) -> None:
    loop, manager = connected
    (node,) = manager.addresses()
    assert manager.broker_version_data is None
    request = MetadataRequest(topics=[])
    found = loop.run(manager.answers, [(node, request), (node, request)], 10_000)
    assert [answer.brokers[0].node_id for answer in found] == [node, node]
    own = manager._conns[node].broker_version_data
    assert own.api_version(MetadataRequest) == MetadataRequest.max_version
    assert manager.broker_version_data is None


@pytest.mark.parametrize("asked", ["any broker", "one broker"])
def test_an_answer_leaves_the_request_as_it_was(connected: _Connected, asked: str) -> None:
    loop, manager = connected
    (node,) = manager.addresses()
    chosen = None if asked == "any broker" else node
    request = ApiVersionsRequest(client_software_name="spark-eos", client_software_version="1")
    for _ in range(2):
        answer = loop.run(manager.answer, request, chosen, 10_000, 10_000)
        assert answer.error_code == 0
        assert request.API_VERSION is None
    assert manager.checks > 0


def test_a_broker_that_the_metadata_lacks(connected: _Connected) -> None:
    loop, manager = connected
    request = MetadataRequest(topics=[])
    with pytest.raises(kafka_errors.UnknownBrokerIdError):
        loop.run(manager.answer, request, 99, 1_000, 1_000)
    assert loop.run(manager.answers, [(99, request)], 1_000) == [None]


def test_waiting_for_a_connection_is_limited(broker: EmbeddedKafka, connected: _Connected) -> None:
    loop, manager = connected
    (node,) = manager.addresses()
    broker.pause()
    try:
        begin = time.monotonic()
        # The kernel accepts the connection, but the request for versions gets no answer.
        with pytest.raises(kafka_errors.KafkaTimeoutError):
            loop.run(manager.answer, MetadataRequest(topics=[]), node, 400, 400)
        with pytest.raises(kafka_errors.KafkaTimeoutError):
            loop.run(manager.answer, MetadataRequest(topics=[]), None, 60_000, 400)
        assert loop.run(manager.answers, [(node, MetadataRequest(topics=[]))], 400) == [None]
        assert time.monotonic() - begin < 20
    finally:
        broker.resume()


def test_expired_metadata_is_read_again(connected: _Connected) -> None:
    loop, manager = connected
    until = time.monotonic() + 60
    manager.sent.clear()
    manager.expire_metadata()
    while "Metadata" not in manager.sent:
        assert time.monotonic() < until
        time.sleep(0.01)
    (node,) = manager.addresses()
    loop.run(manager.answer, MetadataRequest(topics=[]), node, 10_000, 10_000)


def test_the_connected_broker_with_the_least_to_do_is_chosen(connected: _Connected) -> None:
    loop, manager = connected
    (node,) = manager.addresses()
    assert manager.least_loaded_node() == node  # not connected to any
    loop.run(manager.answer, MetadataRequest(topics=[]), node, 10_000, 10_000)
    assert manager._conns[node].connected
    assert manager.least_loaded_node() == node


def test_a_throttled_connection_is_named(broker: EmbeddedKafka) -> None:
    settings = ClientSettings({"bootstrap.servers": broker.bootstrap_servers})
    with contextlib.closing(Connections(settings)) as connections:
        cluster.cluster_id(connections, deadline())
        _loop, manager = connections._connected(deadline())
        for connection in manager._conns.values():
            connection.pause("throttle")
        with pytest.raises(DeadlineExceededError, match="throttles this client"):
            cluster.cluster_id(connections, Deadline(1, "connect_timeout_ms"))


def test_a_silent_bootstrap_server_is_passed_over(
    broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_python, "_FIRST_MS", 300)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        servers = f"127.0.0.1:{silent.getsockname()[1]},{broker.bootstrap_servers}"
        # Which one is asked first is left to chance.
        for _ in range(8):
            with _connections(servers) as (_loop, manager):
                manager.reach(10)
                assert list(manager.addresses().values()) == [broker.bootstrap_servers]


def test_a_listener_that_says_nothing_in_tls_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_python, "_FIRST_MS", 300)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        servers = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in silent)
        tls = {"security.protocol": "SSL"}
        _, manager = stack.enter_context(_connections(servers, **tls))
        with pytest.raises(kafka_errors.KafkaTimeoutError):
            manager.reach(2)
        assert "I/O wait timed out" in str(manager.ends[0][1])


@contextlib.contextmanager
def _listener(said: bytes) -> Iterator[int]:
    """A listener that sends something and closes each connection."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = server.accept()
                accepted.sendall(said)
                accepted.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(60)


def _connected_elsewhere(fd: int, port: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as copied:
        try:
            peer = copied.getpeername()
        except OSError:
            return False
    return isinstance(peer, tuple) and peer[1] != port


def _open_sockets(port: int) -> set[str]:
    """This process's sockets, except those to others: garbage collection may reconnect Py4J."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # another thread may have closed it
            if fd.is_socket() and not _connected_elsewhere(int(fd.name), port):
                found.add(f"{fd.name} {fd.readlink()}")
    return found


@contextlib.contextmanager
def _no_socket_is_left(port: int) -> Iterator[None]:
    """Sockets are closed, neither forgotten nor left to the garbage collector."""
    gc.collect()
    before = _open_sockets(port)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        yield
        # A listener of the test's may still be closing its end.
        until(
            lambda: not _open_sockets(port) - before,
            lambda: f"closed sockets: {_open_sockets(port) - before}",
            10,
        )
        gc.collect()
    assert [str(one.message) for one in caught] == []


def test_a_listener_that_is_not_there_leaves_no_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with (
        _no_socket_is_left(port),
        _connections(f"127.0.0.1:{port}") as (_, manager),
        pytest.raises(kafka_errors.KafkaTimeoutError),
    ):
        manager.reach(0.5)


def test_a_failed_handshake_leaves_no_socket() -> None:
    with (
        _listener(b"HTTP/1.1 400") as port,
        _no_socket_is_left(port),
        _connections(f"127.0.0.1:{port}", **{"security.protocol": "SSL"}) as (_, manager),
        pytest.raises(kafka_errors.KafkaTimeoutError),
    ):
        manager.reach(0.5)
    assert any("Handshake failed" in str(error) for _, error, _ in manager.ends)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_closing_while_connecting_leaves_no_socket(protocol: str) -> None:
    with (
        # Once its backlog is full, a listener lets clients wait; a TLS client waits for an answer.
        socket.create_server(("127.0.0.1", 0), backlog=0) as server,
        socket.create_connection(server.getsockname()),
        contextlib.ExitStack() as waiting,
    ):
        if protocol == "SSL":
            waiting.enter_context(server.accept()[0])
        port = server.getsockname()[1]
        with (
            _no_socket_is_left(port),
            _connections(f"127.0.0.1:{port}", **{"security.protocol": protocol}) as (_, manager),
            pytest.raises(kafka_errors.KafkaTimeoutError),
        ):
            manager.reach(0.5)


def test_closing_with_something_unsent_leaves_no_socket(broker: EmbeddedKafka) -> None:
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    with (
        contextlib.ExitStack() as resumed,
        _no_socket_is_left(port),
        _connections(broker.bootstrap_servers) as (loop, manager),
    ):
        manager.reach(30)
        (node,) = manager.addresses()

        async def write() -> None:
            connection = manager.get_connection(node)
            await connection.init_future
            # More than the kernel takes; the broker, which would end the connection, reads none.
            broker.pause()
            connection.transport.write(b"\x7f" * 50_000_000)

        resumed.callback(broker.resume)
        loop.run(write)
        manager.ends.clear()
    # Our own end is no failure, of which kafka-python would log an error.
    assert manager.ends == []


def test_a_closed_loop_answers_no_caller(broker: EmbeddedKafka) -> None:
    with _connections(broker.bootstrap_servers) as (loop, manager):
        manager.reach(30)
        (node,) = manager.addresses()
    with pytest.raises(RuntimeError):
        loop.run(manager.answer, MetadataRequest(topics=[]), node, 1_000, 1_000)


def test_tokens_are_asked_for_with_their_extensions() -> None:
    provider = TokenProvider(lambda _: ("abc", time.time() + 60, "", {"tenant": "a"}), "")
    sent = SaslMechanismOAuth(sasl_oauth_token_provider=provider).auth_bytes()
    assert sent == b"n,,\x01auth=Bearer abc\x01tenant=a\x01\x01"


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), ConnectionResetError()])
def test_an_end_by_the_listener_while_sending_is_the_listeners(error: OSError) -> None:
    assert closed_by_peer(kafka_errors.KafkaConnectionError(error))


def test_a_silent_address_leaves_time_for_the_others(
    broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        # Once its backlog is full, a listener lets clients wait.
        socket.create_server(("127.0.0.1", 0), backlog=0) as silent,
        socket.create_connection(silent.getsockname()),
    ):
        host, _, port = broker.bootstrap_servers.rpartition(":")
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        both = [(*found[0][:4], silent.getsockname()), *found]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
        with _connections(broker.bootstrap_servers) as (_loop, manager):
            manager.reach(4)
            assert manager.addresses()


class _Refused(_Watched):
    refusal: Exception | None = None

    def check(self) -> None:
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise refusal


def test_a_refusal_does_not_end_the_refreshing_of_metadata(broker: EmbeddedKafka) -> None:
    configuration = ClientSettings({"bootstrap.servers": broker.bootstrap_servers})
    settings = configuration.for_kafka_python()
    loop = EventLoop(settings)
    manager = _Refused(loop, settings)
    try:
        manager.reach(30)
        for refusal in (AuthenticationError("refused"), None):
            manager.sent.clear()
            manager.refusal = refusal

            def refreshed() -> bool:
                manager.expire_metadata()  # which a refresh in progress would not notice
                return "Metadata" in manager.sent

            until(refreshed, lambda: "a refresh", 10)
        manager.refusal = AuthenticationError("refused")
        with pytest.raises(AuthenticationError):
            loop.run(manager.answer, MetadataRequest(topics=[]), None, 10_000, 10_000)
    finally:
        loop.end(manager)
