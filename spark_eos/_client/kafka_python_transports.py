"""How kafka-python connects to a broker: what 3.0 has in ``kafka.net``, and what 3.1 has moved."""

import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any

from kafka import errors as kafka_errors

try:
    from kafka.net.backend.selector import NetworkSelector
    from kafka.net.backend.transport import KafkaTCPTransport
    from kafka.net.ssl import KafkaSSLTransport
except ImportError:  # 3.0, whose TLS wraps sockets; that of 3.1 wraps transports
    from kafka.net.selector import NetworkSelector
    from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

__all__ = ["ConnectingSelector"]

_Received = tuple[bytes, Exception | None]


def _data_first(received: _Received) -> _Received:
    # kafka-python drops data received right before the end, such as why it is refused.
    data, error = received
    return (data, None) if data else (data, error)


class _TcpTransport(KafkaTCPTransport):  # type: ignore[misc]
    def _sock_recv(self) -> _Received:
        return _data_first(super()._sock_recv())


# TLS gives up on a listener that says nothing; kafka-python waits for it forever.


class _TlsOnTransport(KafkaSSLTransport):  # type: ignore[misc]
    """TLS of kafka-python 3.1."""

    def __init__(
        self, net: Any, connected: Any, context: Any, host: str, timeout_at: float | None
    ) -> None:
        super().__init__(net, context, host=host)
        self._timeout_at = timeout_at
        self.connection_made(_TcpTransport(net, connected, host=host))

    async def handshake(self) -> None:
        silent = kafka_errors.KafkaTimeoutError("I/O wait timed out")
        limit = self._net.call_at(self._timeout_at, lambda: self.abort(silent))
        try:
            await super().handshake()
        finally:
            self._net.cancel(limit)

    def _ssl_recv(self) -> _Received:
        return _data_first(super()._ssl_recv())


class _TlsOnSocket(KafkaSSLTransport):  # type: ignore[misc]
    """TLS of kafka-python 3.0."""

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


_ON_SOCKET = issubclass(KafkaSSLTransport, KafkaTCPTransport)
_TlsTransport = _TlsOnSocket if _ON_SOCKET else _TlsOnTransport


class ConnectingSelector(NetworkSelector):  # type: ignore[misc]
    """kafka-python's selector; it closes each socket that does not connect or fails in TLS."""

    async def create_connection(
        self, protocol: Any, host: str, port: int, *, ssl: Any = None, **limits: Any
    ) -> None:
        """What 3.1 calls to connect; 3.0 has a transport built, and calls the rest itself."""
        transport = await self.transport(host, port, ssl, **limits)
        try:
            protocol.connection_made(transport)
        except BaseException as error:
            transport.abort(error)
            raise

    async def transport(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext | None,
        socket_options: Iterable[Any] = (),
        timeout_at: float | None = None,
    ) -> Any:
        """A transport to a host, over TLS if there is a context."""
        connected = await self._connect(host, port, socket_options, timeout_at)
        transport = (
            _TcpTransport(self, connected, host=host)
            if context is None
            else _TlsTransport(self, connected, context, host, timeout_at)
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
        self, host: str, port: int, options: Iterable[Any], timeout_at: float | None
    ) -> socket.socket:
        found: socket.socket | OSError | None = None
        try:
            for *of_socket, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                found = await self._attempt(of_socket, address, options, timeout_at)
                if isinstance(found, socket.socket):
                    return found
        except OSError as error:
            found = error
        except kafka_errors.KafkaTimeoutError:
            raise kafka_errors.KafkaConnectionError("Connection timed out") from None
        raise kafka_errors.KafkaConnectionError(str(found))

    async def _attempt(
        self, of_socket: list[Any], address: Any, options: Iterable[Any], timeout_at: float | None
    ) -> socket.socket | OSError:
        with contextlib.ExitStack() as unconnected:
            try:
                connecting = unconnected.enter_context(socket.socket(*of_socket))
                connecting.settimeout(0)
                for option in options:
                    connecting.setsockopt(*option)
                code = connecting.connect_ex(address)
                if code == errno.EINPROGRESS:
                    await self.wait_write(connecting, timeout_at=timeout_at)
                    code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            except OSError as error:
                return error
            if code:
                return OSError(code, errno.errorcode.get(code, "unknown"))
            unconnected.pop_all()
            return connecting
