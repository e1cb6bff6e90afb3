"""Faults that `support.proxy.KafkaProxy` applies to a request or its answer."""

import asyncio
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.api_message import ApiMessage

# Imported so that kafka-python knows how to read their answers.
from spark_eos._kafka import protocol as _protocol  # noqa: F401

_CLIENT_ID_AT = 10


@dataclass(frozen=True)
class Request:
    """A request as a client sent it."""

    content: bytes  # bytes with the header, but without the length prefix
    at: float  # arrival by the monotonic clock
    upstream_port: int | None = None  # port of the node that it is for

    @property
    def api_key(self) -> int:
        return int.from_bytes(self.content[:2], "big")

    @property
    def version(self) -> int:
        return int.from_bytes(self.content[2:4], "big")

    @property
    def correlation_id(self) -> int:
        return int.from_bytes(self.content[4:8], "big")

    @property
    def client_id(self) -> str:
        length = int.from_bytes(self.content[8:_CLIENT_ID_AT], "big", signed=True)
        return self.content[_CLIENT_ID_AT : _CLIENT_ID_AT + max(0, length)].decode()

    def message(self) -> Any:
        return _request_class(self.api_key).decode(self.content, version=self.version, header=True)

    def answer(self, content: bytes) -> Any:
        """The broker's answer to the request, decoded."""
        return self._answer_class().decode(content, version=self.version, header=True)

    def encoded(self, answer: Any) -> bytes:
        """An answer to the request, encoded for the client."""
        answer._header = None  # otherwise, a decoded answer could not be encoded again
        answer.API_VERSION = self.version
        answer.with_header(self.correlation_id)
        return bytes(answer.encode(header=True))

    def _answer_class(self) -> Any:
        return ResponseClassRegistry._response_class_registry[self.api_key]


@functools.cache
def _request_class(api_key: int) -> Any:
    classes = list(ApiMessage.__subclasses__())
    for each in classes:
        classes.extend(each.__subclasses__())
    known = [c for c in classes if c.type == "request" and api_key == c.API_KEY]
    # Some messages of spark-eos are newer versions of kafka-python's.
    return max(known, key=lambda c: c.max_version)


class Link:
    """A client's connection, and the proxy's corresponding connection to the broker."""

    def __init__(
        self,
        client: asyncio.StreamWriter,
        broker: asyncio.StreamWriter,
        upstream_port: int | None = None,
    ) -> None:
        self.upstream_port = upstream_port  # the node's port
        self.client_id = ""  # client id of the last request; empty before the first
        self._client = client
        self._broker = broker
        self._expected: dict[int, tuple[Request, Fault]] = {}

    def expect(self, request: Request, fault: "Fault") -> None:
        """Record that an answer will come, and what to do with it."""
        self._expected[request.correlation_id] = (request, fault)

    def take(self, correlation_id: int) -> "tuple[Request, Fault] | None":
        """Return what was recorded for an answer; None if it is not expected."""
        return self._expected.pop(correlation_id, None)

    async def answered(self) -> None:
        """Wait until the broker has answered everything: answers come in order."""
        while self._expected:
            await asyncio.sleep(0.001)

    def to_broker(self, content: bytes) -> None:
        self._broker.write(len(content).to_bytes(4, "big") + content)

    def to_client(self, content: bytes) -> None:
        self._client.write(len(content).to_bytes(4, "big") + content)

    def cut(self) -> None:
        for writer in (self._client, self._broker):
            writer.transport.abort()


class Fault:
    """No fault: the request goes to the broker and its answer to the client."""

    async def request(self, link: Link, request: Request) -> None:
        """Called instead of forwarding the request."""
        link.expect(request, self)
        link.to_broker(request.content)

    async def answer(self, link: Link, request: Request, content: bytes) -> None:
        """Called instead of forwarding the answer."""
        link.to_client(content)


class Answer(Fault):
    """The broker never sees the request; the client gets the answer that ``make`` returns."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    async def request(self, link: Link, request: Request) -> None:
        await link.answered()
        link.to_client(request.encoded(self._make(request.message())))


class Rewrite(Fault):
    """The broker handles the request, but ``change`` modifies its answer in place."""

    def __init__(self, change: Callable[[Any, Any], None]) -> None:
        self._change = change

    async def answer(self, link: Link, request: Request, content: bytes) -> None:
        decoded = request.answer(content)
        self._change(request.message(), decoded)
        link.to_client(request.encoded(decoded))


class CutBefore(Fault):
    """The connection is cut before the broker sees the request."""

    async def request(self, link: Link, request: Request) -> None:
        link.cut()


class CutAfter(Fault):
    """The broker handles the request; the connection is cut instead of answering.

    With ``where``, only the first answer for which it returns True is replaced.
    """

    def __init__(self, where: Callable[[Any], bool] | None = None) -> None:
        self._where = where
        self.cuts = 0

    async def answer(self, link: Link, request: Request, content: bytes) -> None:
        if self._where is not None and (self.cuts or not self._where(request.answer(content))):
            await super().answer(link, request, content)
            return
        self.cuts += 1
        link.cut()


class DropAnswer(Fault):
    """The broker handles the request; its answer is lost, but the connection stays open."""

    async def answer(self, link: Link, request: Request, content: bytes) -> None:
        pass


class DropRequest(Fault):
    """The broker never sees the request, and there is no answer."""

    async def request(self, link: Link, request: Request) -> None:
        pass


class Twice(Fault):
    """The broker gets the request twice; the client gets the second answer."""

    def __init__(self) -> None:
        self.first: Any = None

    async def answer(self, link: Link, request: Request, content: bytes) -> None:
        if self.first is None:
            self.first = request.answer(content)
            await super().request(link, request)
        else:
            await super().answer(link, request, content)


class HoldRequest(Fault):
    """The broker gets the request, and later ones on its connection, once ``until`` is set."""

    def __init__(self, until: threading.Event) -> None:
        self._until = until

    async def request(self, link: Link, request: Request) -> None:
        while not self._until.is_set():
            await asyncio.sleep(0.002)
        await super().request(link, request)


class HoldAnswer(Fault):
    """The client gets the answer, and later ones on its connection, once ``until`` is set."""

    def __init__(self, until: threading.Event) -> None:
        self._until = until

    async def answer(self, link: Link, request: Request, content: bytes) -> None:
        while not self._until.is_set():
            await asyncio.sleep(0.002)
        await super().answer(link, request, content)
