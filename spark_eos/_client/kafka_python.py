"""The internals of kafka-python that spark-eos uses: event loop, connections and messages."""

# Apart from the verifier and the test brokers, other modules use kafka-python only through this
# module and the public `kafka.errors`. Any kafka-python release may change these internals:
# MAINTAINING.md describes how to upgrade.

import copy
import errno
import math
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import Any, Final

from kafka import errors as kafka_errors
from kafka.cluster import collect_hosts
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    IsolationLevel,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetSpec,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse

from spark_eos._client.kafka_python_transports import open_transport

__all__ = [
    "AbstractTokenProvider",
    "ApiMessage",
    "ApiVersionsRequest",
    "CreatePartitionsRequest",
    "CreateTopicsRequest",
    "DescribeConfigsRequest",
    "DescribeGroupsRequest",
    "DescribeProducersRequest",
    "DescribeTransactionsRequest",
    "EventLoop",
    "FindCoordinatorRequest",
    "InitProducerIdRequest",
    "IsolationLevel",
    "ListOffsetsRequest",
    "ListTransactionsRequest",
    "MetadataRequest",
    "NodeConnections",
    "OffsetCommitRequest",
    "OffsetFetchRequest",
    "OffsetSpec",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "api_name",
    "bootstrap_hosts",
    "causes",
    "closed_by_peer",
]

# Seconds to wait for a broker before trying another, if any broker can answer the request.
_SILENT: Final = 1.0
# Time limit for connecting to one of several bootstrap servers.
_FIRST_MS: Final = 3_000
# The same for the only one, whose name may have several addresses.
_ONLY_MS: Final = 10_000
_STOP_MS: Final = 5_000


class _Answer:
    """Like `threading.Event`, but without a lock that an interrupted caller could leave held."""

    def __init__(self) -> None:
        self._sets: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        self._sets.put(None)

    def wait(self) -> None:
        self._sets.get()


class EventLoop(NetworkSelector):  # type: ignore[misc]
    """kafka-python's event loop in its own thread, which runs inside the context ``around``."""

    def __init__(
        self,
        configuration: dict[str, Any],
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._around = around
        super().__init__(**configuration)
        self.start()

    def run_forever(self) -> None:
        with self._around():
            super().run_forever()

    def run(self, coro: Any, *args: Any) -> Any:
        """Run a coroutine function in the loop; return its result or raise its error."""
        # kafka-python would wait for an event, whose lock a caller that Ctrl-C interrupts may leave
        # held. That would hang the loop.
        ours = self._io_thread not in (None, threading.current_thread())
        if self._closed or self._exception or not ours:
            return super().run(coro, *args)
        answer, state = _Answer(), dict[str, Any](value=None, exception=None)

        async def waiter() -> None:
            try:
                state["value"] = await self._invoke(coro, *args)
            except BaseException as error:  # noqa: BLE001 - raised to the caller
                state["exception"] = state["exception"] or error
            finally:
                with self._pending_waiters_lock:
                    self._pending_waiters.pop(answer, None)
                answer.set()

        with self._pending_waiters_lock:
            self._pending_waiters[answer] = state
        self.call_soon_threadsafe(waiter)
        answer.wait()
        if state["exception"] is not None:
            raise state["exception"]
        return state["value"]

    def end(self, manager: "NodeConnections") -> None:
        """Close the connections without sending pending data, and end the thread."""

        async def close_all() -> None:
            manager.abort()

        self.run(close_all)
        self.stop(timeout_ms=_STOP_MS)
        self.close()


class NodeConnections(KafkaConnectionManager):  # type: ignore[misc]
    """kafka-python's connections; subclasses interpret failures in `check` and `failed`."""

    def __init__(self, selector: Any, configuration: dict[str, Any]) -> None:
        self._met: dict[Any, float] = {}
        super().__init__(selector, **configuration)

    def check(self) -> None:
        """Called before each use of a connection; may raise."""

    def failed(self, address: str, error: BaseException, *, reached: bool) -> None:
        """Called when a connection fails; ``reached`` is True if the cluster was reached before."""

    def reach(self, seconds: float) -> None:
        """Ask the bootstrap servers for the cluster's brokers until one of them answers."""
        self.bootstrap(timeout_ms=max(1, int(seconds * 1000)))
        # Forget the API versions of this first broker, which may not have been upgraded yet:
        # kafka-python would limit later connections to them.
        self.broker_version_data = None

    async def meet(self, timeout_ms: float) -> None:
        """Connect to any broker at its advertised address."""
        connection = self.get_connection(self.least_loaded_node())
        if not connection.connected:
            await self.wait_for(connection.init_future, timeout_ms)

    def is_connected(self, node: int) -> bool:
        connection = self._conns.get(node)
        return connection is not None and bool(connection.connected)

    def throttles(self, node: int | None) -> bool:
        """Return True if a broker, by default any, has told this client to pause (a quota)."""
        connections = [*self._conns.items()]
        return any("throttle" in each.paused for n, each in connections if node in {None, n})

    def addresses(self) -> dict[int, str]:
        """Return each broker's ``host:port`` by node id, from the metadata."""
        return {b.node_id: f"{b.host}:{b.port}" for b in self.cluster.brokers()}

    def abort(self) -> None:
        """Close all connections at once; kafka-python's `close` would first send pending data."""
        for connection in list(self._conns.values()):
            if connection.transport is not None:
                connection.transport._write_buffer.clear()
        self.close()

    def expire_metadata(self) -> None:
        """Request a metadata refresh, which happens soon afterwards."""
        self.cluster.request_update()

    def get_connection(self, node_id: Any, *arguments: Any, **named: Any) -> Any:
        """Return the connection to a broker; it may not be established yet."""
        if not self.bootstrapped:
            # Later, kafka-python itself connects to refresh its metadata. An error would end its
            # refreshing for good, and no caller would see the error.
            self.check()
        known = self._conns.get(node_id)
        if "timeout_ms" in named:
            # By default, kafka-python would spend the whole time limit on one silent server.
            many = len(self.cluster.bootstrap_brokers()) > 1
            named["timeout_ms"] = min(named["timeout_ms"], _FIRST_MS if many else _ONLY_MS)
        connection = super().get_connection(node_id, *arguments, **named)
        if connection is not known:
            self._met[node_id] = time.monotonic()
            broker = self.cluster.broker_metadata(node_id)

            def ended(error: BaseException) -> None:
                self.failed(f"{broker.host}:{broker.port}", error, reached=self.bootstrapped)

            connection.init_future.add_errback(ended)
            connection.close_future.add_errback(ended)
        return connection

    def least_loaded_node(self, avoided: int | None = None) -> Any:
        """Choose a broker for a request that any broker can answer, preferably a connected one."""
        # kafka-python prefers a new connection to a busy one. If the new connection's broker is
        # down but still in the metadata, the client waits for many seconds.
        known = [broker.node_id for broker in self.cluster.brokers()]
        nodes = [node for node in known if node != avoided] or known
        open_ = [conn for conn in map(self._conns.get, nodes) if conn and conn.connected]
        # Skip brokers that owe an answer, that failed, or that have been connecting for too long.
        since = time.monotonic() - _SILENT
        ready = [conn for conn in open_ if not conn.paused and _oldest(conn) >= since]
        if ready:
            return min(ready, key=lambda conn: len(conn.in_flight_requests)).node_id
        likely = [n for n in nodes if n not in self._backoff and self._met.get(n, since) >= since]
        return random.choice(likely) if likely else super().least_loaded_node()  # noqa: S311

    async def answer(
        self,
        request: Any,
        node: int | None,
        timeout_ms: int,
        any_connect_ms: int,
        avoided: int | None = None,
    ) -> Any:
        """Send a request to a node, by default any node but ``avoided``; return the answer."""
        self.check()
        chosen = self.least_loaded_node(avoided) if node is None else node
        # Send a copy: a message keeps the version it was first sent with, but the next attempt may
        # go to a broker that speaks another version.
        sent = self.send(copy.copy(request), node_id=chosen, request_timeout_ms=timeout_ms)
        connection = self._conns.get(chosen)
        if connection is not None and connection.connected:
            return await sent
        # The request's timeout doesn't cover connecting, so limit the wait here.
        return await self.wait_for(
            sent, timeout_ms if node is not None else min(timeout_ms, any_connect_ms)
        )

    async def answers(
        self, requests: Iterable[tuple[int, Any]], timeout_ms: int
    ) -> list[Any | None]:
        """Send requests to nodes in parallel; return the answers, None for late or failed ones."""
        under_way = [self._sent(node, request, timeout_ms) for node, request in requests]
        until = time.monotonic() + timeout_ms / 1000
        return [await self._or_none(sent, until) for sent in under_way]

    def _sent(self, node: int, request: Any, timeout_ms: int) -> Any | None:
        self.check()
        try:
            return self.send(copy.copy(request), node_id=node, request_timeout_ms=timeout_ms)
        except kafka_errors.UnknownBrokerIdError:
            # The broker has left the cluster since the caller learned of it.
            self.expire_metadata()
            return None

    async def _or_none(self, sent: Any | None, until: float) -> Any | None:
        if sent is None:
            return None
        try:
            return await self.wait_for(sent, max(0.0, until - time.monotonic()) * 1000)
        except kafka_errors.IncompatibleBrokerVersion:
            raise  # nothing was sent, so this is no silence
        except (kafka_errors.KafkaError, OSError):
            return None

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        return await open_transport(
            self._net,
            node.host,
            node.port,
            self.config["ssl_context"] if self.ssl_enabled else None,
            self.config["socket_options"],
            timeout_at,
        )


def _oldest(connection: Any) -> float:
    """Return when the oldest unanswered request was sent, by the monotonic clock."""
    requests = connection.in_flight_requests
    sent: float = min((at for _, _, at, *_ in requests), default=math.inf)
    return sent


def bootstrap_hosts(servers: str) -> list[tuple[str, int]]:
    """Parse ``host:port,...`` as kafka-python does; raise ValueError if that fails."""
    return [(host, port) for host, port, _family in collect_hosts(servers, randomize=False)]


def api_name(request: Any) -> str:
    """Return Kafka's name for a request's API, such as ``ListOffsets``."""
    return str(request.name).removesuffix("Request")


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield a connection's error and all errors that led to it."""
    # kafka-python passes the cause to the error as an argument, or raises while handling the cause.
    seen: list[BaseException] = []
    queue: list[BaseException | None] = [error]
    while queue:
        next_error = queue.pop(0)
        if next_error is not None and next_error not in seen:
            seen.append(next_error)
            yield next_error
            queue += [a for a in next_error.args if isinstance(a, BaseException)]
            queue += [next_error.__cause__, next_error.__context__]


def closed_by_peer(error: BaseException) -> bool:
    """Return True if a connection ended because the listener closed it without an answer."""
    return "socket disconnected" in str(error) or any(
        isinstance(cause, ssl.SSLEOFError | ConnectionResetError | BrokenPipeError)
        # macOS reports this for a connection that is being closed.
        or (isinstance(cause, OSError) and cause.errno == errno.EPROTOTYPE)
        for cause in causes(error)
    )
