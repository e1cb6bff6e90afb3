"""Connections to brokers in kafka-python's event loop, over TLS if there is a context."""

import contextlib
import errno
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from kafka import errors as kafka_errors
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

__all__ = ["open_transport"]

_Received = tuple[bytes, Exception | None]


def _data_first(received: _Received) -> _Received:
    # kafka-python drops data received just before a connection ends, such as why it was refused.
    data, error = received
    return (data, None) if data else (data, error)


class _TcpTransport(KafkaTCPTransport):  # type: ignore[misc]
    def _sock_recv(self) -> _Received:
        return _data_first(super()._sock_recv())


class _TlsTransport(KafkaSSLTransport):  # type: ignore[misc]
    """Gives up on a silent listener; kafka-python would wait forever."""

    def __init__(
        self, net: Any, connected: Any, context: Any, host: str, timeout_at: float | None
    ) -> None:
        super().__init__(net, connected, host=host, ssl_context=context)
        self._timeout_at = timeout_at

    async def handshake(self) -> None:
        while (wait := self._wanted()) is not None:
            await wait(self._sock, timeout_at=self._timeout_at)

    def _wanted(self) -> Callable[..., Any] | None:
        try:
            self._sock.do_handshake()
        except ssl.SSLWantReadError:
            return self._net.wait_read  # type: ignore[no-any-return]
        except ssl.SSLWantWriteError:
            return self._net.wait_write  # type: ignore[no-any-return]
        return None

    def _sock_recv(self) -> _Received:
        return _data_first(super()._sock_recv())


async def open_transport(
    net: Any,
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    socket_options: Iterable[Any],
    timeout_at: float | None,
) -> Any:
    """Return a transport to a host; close every socket that fails to connect or to set up TLS."""
    connected = await _connect(net, host, port, socket_options, timeout_at)
    transport = (
        _TcpTransport(net, connected, host=host)
        if context is None
        else _TlsTransport(net, connected, context, host, timeout_at)
    )
    try:
        await transport.handshake()
    except BaseException as error:
        transport.abort(error)
        if not isinstance(error, Exception):
            raise
        raise kafka_errors.KafkaConnectionError(f"Handshake failed: {error}") from error
    return transport


async def _connect(
    net: Any, host: str, port: int, options: Iterable[Any], timeout_at: float | None
) -> socket.socket:
    failure: object = None
    addresses = await _addresses(net, host, port, timeout_at)
    for number, (*of_socket, _, address) in enumerate(addresses):
        until = timeout_at
        if until is not None:
            # A silent address must leave time for the others.
            now = time.monotonic()
            until = now + (until - now) / (len(addresses) - number)
        try:
            attempt = await _attempt(net, of_socket, address, options, until)
        except kafka_errors.KafkaTimeoutError:
            failure = "Connection timed out"
            continue
        if isinstance(attempt, socket.socket):
            return attempt
        failure = attempt
    raise kafka_errors.KafkaConnectionError(str(failure))


async def _addresses(net: Any, host: str, port: int, timeout_at: float | None) -> list[Any]:
    """Look a host up in a thread: the system may take a minute, and would stop the loop."""
    found: list[Any] = []
    waiting, looking = socket.socketpair()

    def look_up() -> None:
        with looking:  # its end wakes the loop
            try:
                found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except Exception as error:  # noqa: BLE001 - raised in the loop
                found.append(error)

    with waiting:
        try:
            threading.Thread(target=look_up, name="spark-eos-lookup", daemon=True).start()
        except RuntimeError:  # there are too many threads, or Python is ending
            look_up()
        try:
            await net.wait_read(waiting, timeout_at=timeout_at)
        except kafka_errors.KafkaTimeoutError:
            reason = "the name server has not answered in time"
            raise kafka_errors.KafkaConnectionError(reason) from None
    answer = found[0]
    if isinstance(answer, Exception):
        raise kafka_errors.KafkaConnectionError(str(answer)) from None
    return list(answer)


async def _attempt(
    net: Any,
    of_socket: list[Any],
    address: Any,
    options: Iterable[Any],
    timeout_at: float | None,
) -> socket.socket | OSError:
    with contextlib.ExitStack() as unconnected:
        try:
            connecting = unconnected.enter_context(socket.socket(*of_socket))
            connecting.settimeout(0)
            for option in options:
                connecting.setsockopt(*option)
            code = connecting.connect_ex(address)
            if code == errno.EINPROGRESS:
                await net.wait_write(connecting, timeout_at=timeout_at)
                code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        except OSError as error:
            return error
        if code:
            return OSError(code, errno.errorcode.get(code, "unknown"))
        unconnected.pop_all()
        return connecting
