"""A TCP proxy between clients and real brokers, for answers a broker won't give on demand.

It parses Kafka's frames: rules select requests by API key and content, and apply a `Fault` to them.
Everything else passes unchanged, except brokers' addresses: answers contain the proxy's addresses
instead, so that clients keep using the proxy.
"""

import asyncio
import contextlib
import functools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafka.protocol.admin import DescribeClusterRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from spark_eos.testing import EmbeddedKafka
from support.proxy_faults import Fault, Link, Request, Rewrite

HOST = "127.0.0.1"
_NO_FAULT = Fault()
_LENGTH = 4
_BUFFER = 1 << 22
_TELL_ADDRESSES = {
    each.API_KEY for each in (MetadataRequest, FindCoordinatorRequest, DescribeClusterRequest)
}


@dataclass
class Rule:
    api_key: int  # kind of the requests
    fault: Fault  # applied to the requests
    times: int | None  # maximum number of requests; None for all
    where: Callable[[Any], bool] | None  # condition on the decoded request; None for all
    hits: list[Request] = field(default_factory=list)  # requests that the fault was applied to
    _hit: threading.Event = field(default_factory=threading.Event)

    def applies(self, request: Request) -> bool:
        if request.api_key != self.api_key or (
            self.times is not None and len(self.hits) >= self.times
        ):
            return False
        return self.where is None or self.where(request.message())

    def hit(self, request: Request) -> None:
        self.hits.append(request)
        self._hit.set()

    def await_hit(self, timeout: float = 30) -> Request:
        """Wait for the first request and return it."""
        assert self._hit.wait(timeout), f"no request with api key {self.api_key} came"
        return self.hits[0]


class Observer(Protocol):
    """Observes requests and answers; called in the proxy's thread."""

    def request(self, link: Link, request: Request) -> None:
        """Called when a client has sent a request."""

    def answer(self, link: Link, request: Request, content: bytes) -> None:
        """Called when the broker has answered a request."""

    def gone(self, link: Link) -> None:
        """Called when a client's connection has ended."""


class KafkaProxy:
    """A proxy with a port for each node of a cluster, served by a thread; a context manager."""

    def __init__(
        self, upstream_port: int | None = None, *, nodes: int = 1, record: bool = True
    ) -> None:
        # The nodes' own ports.
        self.upstream_ports: list[int | None] = [upstream_port, *[None] * (nodes - 1)]
        self.latency = 0.0  # seconds added to every request and every answer
        # Directions in which nothing passes: ``requests`` or ``answers``.
        self.blocked: frozenset[str] = frozenset()
        # Selects the connections to hold up and cut, by client id; by default, all.
        self.concerns: Callable[[str], bool] = everybody
        # Ports of nodes that no connection reaches, whatever ``concerns`` selects.
        self.cut_off: frozenset[int | None] = frozenset()
        self.ports: list[int] = []
        # Notified of every request that passes, every answer, and the end of every connection.
        self.observers: tuple[Observer, ...] = ()
        self._record = record
        self.requests: list[Request] = []
        self._rules: list[Rule] = []
        self._links: set[Link] = set()
        self._failures: list[Exception] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> "KafkaProxy":
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.ports)

    @property
    def port(self) -> int:
        """The first node's address."""
        return self.ports[0]

    def connect(self, kafka: EmbeddedKafka) -> None:
        """Forwards to the nodes of a cluster."""
        self.upstream_ports = [node.ports.client for node in kafka.nodes]

    # Requested by tests -------------------------------------------------------------------------

    def on(
        self,
        message: Any,
        fault: Fault,
        *,
        times: int | None = 1,
        where: Callable[[Any], bool] | None = None,
    ) -> Rule:
        """Applies ``fault`` to requests of a kafka-python message class from now on."""
        rule = Rule(message.API_KEY, fault, times, where)
        self._rules.append(rule)
        return rule

    def reset(self) -> None:
        """Removes all rules and recorded requests; fails if one of the test's rules has failed."""
        self._rules.clear()
        self.requests.clear()
        failures, self._failures = self._failures, []
        if failures:
            raise failures[0]

    def cut(self) -> None:
        """Cuts currently open connections of the clients concerned."""

        async def cut() -> None:
            for link in list(self._links):
                if self.concerns(link.client_id):
                    link.cut()

        self._run(cut())

    def count(self, message: Any, client_id: str = "") -> int:
        """Requests of a message class so far, of clients whose id begins with ``client_id``."""
        return sum(
            1
            for r in list(self.requests)
            if r.api_key == message.API_KEY and r.client_id.startswith(client_id)
        )

    def deliver(self, request: Request) -> Any:
        """Sends a recorded request once more, late, on a new connection; returns the answer."""
        return self._run(self.deliver_late(request))

    async def deliver_late(self, request: Request) -> Any:
        """Like `deliver`, for faults, which run in the proxy's thread."""
        reader, writer = await asyncio.open_connection(HOST, request.upstream_port)
        writer.write(_framed(request.content))
        content = await _read_frame(reader)
        writer.close()
        return request.answer(content)

    # Forwarding ---------------------------------------------------------------------------------

    async def _listen(self) -> None:
        for node in range(len(self.upstream_ports)):
            serve = functools.partial(self._serve, node)
            server = await asyncio.start_server(serve, HOST, 0, limit=_BUFFER)
            self._servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        # asyncio leaves a connection unclosed that is being accepted when its server is closed.
        for listening in (socket_ for server in self._servers for socket_ in server.sockets):
            self._loop.remove_reader(listening.fileno())
        for _ in range(10):
            await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        for link in list(self._links):
            link.cut()
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(
        self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        upstream = self.upstream_ports[node]
        # asyncio logs a connection whose task is cancelled, as when the proxy is closed.
        with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.closing(writer):
            up_reader, up_writer = await asyncio.open_connection(HOST, upstream, limit=_BUFFER)
            await self._pass_on(reader, up_reader, Link(writer, up_writer, upstream))

    async def _pass_on(
        self, reader: asyncio.StreamReader, up_reader: asyncio.StreamReader, link: Link
    ) -> None:
        self._links.add(link)
        pumps = [
            asyncio.ensure_future(self._pump_requests(reader, link)),
            asyncio.ensure_future(self._pump_answers(up_reader, link)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            ended = await asyncio.gather(*pumps, return_exceptions=True)
            self._failures += [e for e in ended if isinstance(e, Exception)]
            self._links.discard(link)
            for observer in self.observers:
                observer.gone(link)
            link.cut()

    async def _hold(self, direction: str, link: Link) -> None:
        if self.latency and self.concerns(link.client_id):
            await asyncio.sleep(self.latency)
        # Another thread sets it.
        while link.upstream_port in self.cut_off or (  # noqa: ASYNC110
            direction in self.blocked and self.concerns(link.client_id)
        ):
            await asyncio.sleep(0.01)

    async def _pump_requests(self, reader: asyncio.StreamReader, link: Link) -> None:
        async for content in _frames(reader):
            request = Request(content, time.monotonic(), link.upstream_port)
            link.client_id = request.client_id
            await self._hold("requests", link)
            if self._record:
                self.requests.append(request)
            for observer in self.observers:
                observer.request(link, request)
            rule = next((r for r in list(self._rules) if r.applies(request)), None)
            if rule is None:
                link.expect(request, _NO_FAULT)
                link.to_broker(content)
                continue
            rule.hit(request)
            await rule.fault.request(link, request)

    async def _pump_answers(self, reader: asyncio.StreamReader, link: Link) -> None:
        async for content in _frames(reader):
            await self._hold("answers", link)
            expected = link.take(int.from_bytes(content[:4], "big"))
            if expected is not None:
                request, fault = expected
                for observer in self.observers:
                    observer.answer(link, request, content)
                await fault.answer(link, request, self._as_ours(request, content))

    def _as_ours(self, request: Request, content: bytes) -> bytes:
        """The answer, with the proxy's addresses instead of the brokers'."""
        if request.api_key in _TELL_ADDRESSES:
            for upstream, port in zip(self.upstream_ports, self.ports, strict=True):
                content = content.replace(_address(upstream), _address(port))
        return content


def everybody(_client_id: str) -> bool:
    return True


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(_LENGTH), "big")
    return await reader.readexactly(length)


async def _frames(reader: asyncio.StreamReader) -> Any:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            yield await _read_frame(reader)


def _address(port: int | None) -> bytes:
    """How an address is encoded in answers of all versions: the port follows the host."""
    return HOST.encode() + (port or 0).to_bytes(4, "big")


def _framed(content: bytes) -> bytes:
    return len(content).to_bytes(_LENGTH, "big") + content


@contextlib.contextmanager
def clean(proxy: KafkaProxy) -> Iterator[KafkaProxy]:
    """Yields the proxy without rules; removes the test's rules afterwards."""
    proxy.reset()
    try:
        yield proxy
    finally:
        proxy.latency = 0.0
        proxy.reset()


@contextlib.contextmanager
def broker_that_is_away(
    proxy: KafkaProxy, *, silent: bool, leads: tuple[str, int] | None = None
) -> Iterator[int]:
    """Adds an unreachable second broker, node 2, to brokers' answers.

    Args:
        proxy: The proxy whose clients get these answers.
        silent: Whether connections to the broker succeed but get no answer, as behind a firewall
            that drops packets; otherwise, they are refused.
        leads: A partition that the broker leads.

    Yields:
        The broker's port.
    """

    def add(_request: Any, answer: Any) -> None:
        known = answer.brokers[0]
        answer.brokers.append(type(known)(node_id=2, host=HOST, port=port, rack=None))
        for topic in answer.topics:
            for partition in topic.partitions:
                if (topic.name, partition.partition_index) == leads:
                    partition.leader_id = 2

    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port = listener.getsockname()[1]
        if silent:
            listener.listen()
        proxy.on(MetadataRequest, Rewrite(add), times=None)
        yield port
