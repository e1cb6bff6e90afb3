"""Connections to brokers through kafka-python: one request, one answer.

kafka-python's `kafka.net` provides connections, TLS, SASL, broker metadata and API versions. One
event loop thread serves any number of calling threads.
"""

import copy
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from kafka import errors as kafka_errors
from kafka.net.selector import NetworkSelector

from spark_eos.acls import Grantee
from spark_eos.client.connections import ConnectionManager
from spark_eos.client.settings import ClientSettings
from spark_eos.errors import DeadlineExceededError, SparkEosError
from spark_eos.kafka.deadline import Deadline, RetriableError

_NOT_SENT: Final = (kafka_errors.NodeNotReadyError, kafka_errors.UnknownBrokerIdError)
_LOST: Final = (
    kafka_errors.KafkaConnectionError,
    kafka_errors.RequestTimedOutError,
    kafka_errors.KafkaTimeoutError,
    kafka_errors.Cancelled,
    OSError,
)
# Shortest timeout of a request in seconds, even if the deadline is nearer.
_MIN_TIMEOUT: Final = 1.0
# Limit for connecting to a broker when any other broker can answer instead.
_CONNECT_MS: Final = 3_000

Result = TypeVar("Result")


class BrokerConnections:
    """Connections to the brokers of one cluster, safe to use from any thread.

    Args:
        settings: The client settings.
        request_timeout: Longest wait for one answer, in seconds.
    """

    def __init__(self, settings: ClientSettings, *, request_timeout: float = 10.0) -> None:
        self._settings = settings
        self._request_timeout = request_timeout
        self._lock = threading.Lock()
        self._net: NetworkSelector | None = None
        self._manager: Any = None
        self._closed = False

    @property
    def grantee(self) -> Grantee:
        """The principal that needs ACLs for these connections."""
        return self._settings.grantee

    @property
    def bootstrap_servers(self) -> str:
        """The ``bootstrap.servers`` of the cluster."""
        return self._settings.bootstrap_servers

    def close(self) -> None:
        """Closes all connections and ends the event loop thread. May be called again."""
        with self._lock:
            self._closed = True
            net, self._net = self._net, None
            if net is not None:
                net.run(self._close_connections)
                net.stop(timeout_ms=5_000)
                net.close()

    async def _close_connections(self) -> None:
        self._manager.close()

    def _connected(self, deadline: Deadline) -> NetworkSelector:
        with self._lock:
            if self._closed:
                raise SparkEosError("the connections are closed")
            if self._net is None:
                self._net = self._connect(deadline)
            return self._net

    def _connect(self, deadline: Deadline) -> NetworkSelector:
        configuration = self._settings.for_wire()
        net = NetworkSelector(**configuration)
        net.start()
        self._manager = ConnectionManager(net, self._settings, configuration)
        try:
            self._manager.bootstrap(timeout_ms=max(1, int(deadline.remaining() * 1000)))
        except Exception as error:
            net.stop(timeout_ms=1_000)
            net.close()
            if isinstance(error, SparkEosError):
                raise
            if not isinstance(error, (*_NOT_SENT, *_LOST)):
                raise SparkEosError(
                    f"bootstrap.servers={self._settings.bootstrap_servers!r}: {error!r}"
                ) from error
            raise DeadlineExceededError(
                f"no broker of bootstrap.servers={self._settings.bootstrap_servers!r} could be "
                f"reached within {deadline.seconds:g} s ({deadline.setting}): "
                f"{self._manager.last_failure or error}"
            ) from error
        # Otherwise later connections would be limited to the API versions of this first broker,
        # which may be one that has not been upgraded yet.
        self._manager.broker_version_data = None
        return net

    def brokers(self, deadline: Deadline) -> list[int]:
        """The node ids of all brokers, in order."""
        self._connected(deadline)
        return sorted(broker.node_id for broker in self._manager.cluster.brokers())

    def addresses(self, deadline: Deadline) -> list[str]:
        """The addresses that brokers advertise, such as ``host:9092``."""
        self._connected(deadline)
        return [f"{broker.host}:{broker.port}" for broker in self._manager.cluster.brokers()]

    def address(self, node: int) -> str:
        """A broker's node id and address from the metadata, such as ``2 (host:9092)``."""
        broker = self._manager.cluster.broker_metadata(node)
        return str(node) if broker is None else f"{node} ({broker.host}:{broker.port})"

    def _timeout_ms(self, deadline: Deadline) -> int:
        # The deadline limits when an attempt may start. An attempt that starts in the last moment
        # still gets the time a busy broker needs; otherwise an answer under way would be cut off.
        seconds = max(_MIN_TIMEOUT, deadline.remaining())
        return int(min(self._request_timeout, seconds) * 1000)

    def _exchange(
        self, net: NetworkSelector, request: Any, node: int | None, deadline: Deadline
    ) -> Any:
        timeout_ms = self._timeout_ms(deadline)
        # A message keeps the version it was first sent with, but the next attempt may go to a
        # broker that speaks another version.
        sent = copy.copy(request)

        async def exchange() -> Any:
            manager = self._manager
            chosen = manager.least_loaded_node() if node is None else node
            answer = manager.send(sent, node_id=chosen, request_timeout_ms=timeout_ms)
            if manager.connected_to(chosen):
                return await answer
            # The request's timeout does not cover connecting, so the wait is limited here. If any
            # broker can answer, the next attempt asks another one.
            limit = timeout_ms if node is not None else min(timeout_ms, _CONNECT_MS)
            return await manager.wait_for(answer, limit)

        return net.run(exchange)

    def send(
        self,
        request: Any,
        deadline: Deadline,
        *,
        node: int | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> Any:
        """Sends a request once and returns the answer.

        Args:
            request: A kafka-python message.
            deadline: Limits the wait for the answer.
            node: Node id of the broker; None for the least loaded one.
            on_lost: Called if the request may have reached the broker but the answer was lost.

        Raises:
            RetriableError: No answer came.
            AuthenticationError: The broker and this client do not accept each other.
            SparkEosError: The connections are closed, or kafka-python can't send the request.
        """
        net = self._connected(deadline)
        try:
            return self._exchange(net, request, node, deadline)
        except _NOT_SENT as error:
            self._manager.cluster.request_update()
            raise RetriableError(f"{api_name(request)} not sent: {error!r}") from error
        except _LOST as error:
            if on_lost is not None:
                on_lost()
            raise RetriableError(f"{api_name(request)} not answered: {error!r}") from error
        except (kafka_errors.KafkaError, RuntimeError) as error:
            refused = self._manager.refused()
            if refused is not None:
                raise refused from error
            raise SparkEosError(f"{api_name(request)}: {error!r}") from error

    def send_together(
        self, requests: Iterable[Any], deadline: Deadline, *, node: int
    ) -> list[Any | None]:
        """Sends several requests to one node without waiting in between.

        Returns:
            The answers in the order of the requests; None for each that did not come.
        """
        return self._send_all([(node, request) for request in requests], deadline)

    def send_to_each(self, request: Any, nodes: Iterable[int], deadline: Deadline) -> list[Any]:
        """Sends one request to several nodes at once.

        Returns:
            The answers in the order of the nodes; None for each that did not come.
        """
        return self._send_all([(node, request) for node in nodes], deadline)

    def _send_all(
        self, requests: Iterable[tuple[int, Any]], deadline: Deadline
    ) -> list[Any | None]:
        net = self._connected(deadline)
        timeout_ms = self._timeout_ms(deadline)
        sent = [(node, copy.copy(request)) for node, request in requests]

        async def exchange() -> list[Any | None]:
            under_way = [
                self._manager.send(request, node_id=node, request_timeout_ms=timeout_ms)
                for node, request in sent
            ]
            # The request's timeout does not cover connecting, so the wait is limited here.
            until = Deadline(timeout_ms / 1000, deadline.setting)
            return [
                await _or_none(self._manager.wait_for(answer, until.remaining() * 1000))
                for answer in under_way
            ]

        try:
            found: list[Any | None] = net.run(exchange)
        except kafka_errors.UnknownBrokerIdError:
            # The broker has left the cluster since the caller learned of it.
            self._manager.cluster.request_update()
            return [None] * len(sent)
        except RuntimeError as error:
            raise SparkEosError(f"the connections are closed: {error!r}") from error
        return found

    def ask(
        self,
        request: Any,
        deadline: Deadline,
        *,
        interpret: Callable[[Any], Result],
        node: int | None = None,
    ) -> Result:
        """Sends a request until ``interpret`` accepts the answer, and returns its result.

        Args:
            request: A kafka-python message; it may be sent several times.
            deadline: Limits all attempts together.
            interpret: Turns an answer into the result; raises `RetriableError` to ask again.
            node: Node id of the broker; None for the least loaded one.

        Raises:
            DeadlineExceededError: No attempt succeeded in time.
        """

        def attempt() -> Result:
            return interpret(self.send(request, deadline, node=node))

        return deadline.attempts(api_name(request))(attempt)


def api_name(request: Any) -> str:
    """Kafka's name of a request's API, such as ``ListOffsets``."""
    return str(request.name).removesuffix("Request")


async def _or_none(answer: Any) -> Any | None:
    try:
        return await answer
    except (kafka_errors.KafkaError, OSError):
        return None
