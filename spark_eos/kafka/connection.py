"""Connections to brokers through kafka-python: one request, one answer, and coordinators.

kafka-python's `kafka.net` carries connections, TLS, SASL, metadata of brokers and versions.
One event loop thread serves any number of calling threads.
"""

import copy
import enum
import functools
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from kafka import errors as kafka_errors
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import FindCoordinatorRequest

from spark_eos import acls
from spark_eos.acls import Grantee, Operation, ResourceType
from spark_eos.client.connections import ConnectionManager
from spark_eos.client.error_codes import Code, code_names, refusal
from spark_eos.client.settings import ClientSettings
from spark_eos.errors import DeadlineExceededError, SparkEosError
from spark_eos.kafka.deadline import Deadline, RetriableError
from spark_eos.kafka.transactional_ids import id_prefix_of

# Reconnecting is this module's business, and its outcome reaches the user as an error that says
# what to do; without a handler Python would print every attempt.
logging.getLogger("kafka").addHandler(logging.NullHandler())

_NOT_SENT: Final = (kafka_errors.NodeNotReadyError, kafka_errors.UnknownBrokerIdError)
_LOST: Final = (
    kafka_errors.KafkaConnectionError,
    kafka_errors.RequestTimedOutError,
    kafka_errors.KafkaTimeoutError,
    kafka_errors.Cancelled,
    OSError,
)
# Seconds, whatever is left of the deadline.
_LEAST_TIMEOUT: Final = 1.0
_RETRY_HERE: Final = {Code.COORDINATOR_LOAD_IN_PROGRESS}
_RETRY_ELSEWHERE: Final = {Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR}

# A broker that any other can stand in for may take so long to be connected to.
_CONNECTING_MS: Final = 3_000

Codes = Callable[[Any], Iterable[int]]
Result = TypeVar("Result")


class CoordinatorType(enum.IntEnum):
    """Key types of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class Wire:
    """Connections to one cluster, safe to use from any thread.

    Args:
        settings: the client settings.
        request_timeout: seconds that one answer may take.
    """

    def __init__(self, settings: ClientSettings, *, request_timeout: float = 10.0) -> None:
        self._settings = settings
        self._request_timeout = request_timeout
        self._lock = threading.Lock()
        self._net: NetworkSelector | None = None
        self._manager: Any = None
        self._coordinators: dict[tuple[CoordinatorType, str], int] = {}
        self._closed = False

    @property
    def grantee(self) -> Grantee:
        """Whom ACLs for these connections are given to."""
        return self._settings.grantee

    @property
    def bootstrap_servers(self) -> str:
        """Where the cluster is found."""
        return self._settings.bootstrap_servers

    def close(self) -> None:
        """Closes all connections and ends the event loop's thread. May be called again."""
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
        # Or no later connection would speak newer versions than the broker met first, which may be
        # one that has yet to be upgraded.
        self._manager.broker_version_data = None
        return net

    def brokers(self, deadline: Deadline) -> list[int]:
        """Node ids of all brokers."""
        self._connected(deadline)
        return sorted(broker.node_id for broker in self._manager.cluster.brokers())

    def _timeout_ms(self, deadline: Deadline) -> int:
        # A deadline limits when an attempt may begin. One that begins in its last moment still gets
        # the time that a busy broker takes, or an answer on its way would be cut off.
        seconds = max(_LEAST_TIMEOUT, deadline.remaining())
        return int(min(self._request_timeout, seconds) * 1000)

    def _exchange(
        self, net: NetworkSelector, request: Any, node: int | None, deadline: Deadline
    ) -> Any:
        timeout_ms = self._timeout_ms(deadline)
        # A message keeps the version that it is first sent with, and the next attempt may go to a
        # broker that speaks another one.
        sent = copy.copy(request)

        async def exchange() -> Any:
            manager = self._manager
            chosen = manager.least_loaded_node() if node is None else node
            answer = manager.send(sent, node_id=chosen, request_timeout_ms=timeout_ms)
            if manager.connected_to(chosen):
                return await answer
            # Else the wait for a connection would not be bounded by the request's time. Where any
            # broker can answer, the next attempt asks another one.
            limit = timeout_ms if node is not None else min(timeout_ms, _CONNECTING_MS)
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
        """Sends a request to a node, or to any; raises `RetriableError` when no answer came.

        Args:
            request: a kafka-python message.
            deadline: limits the wait for the answer.
            node: the broker's id; None for the one least loaded.
            on_lost: called when the request may have reached the broker but its answer was lost.
        """
        net = self._connected(deadline)
        try:
            return self._exchange(net, request, node, deadline)
        except _NOT_SENT as error:
            self._manager.cluster.request_update()
            raise RetriableError(f"{_called(request)} not sent: {error!r}") from error
        except _LOST as error:
            if on_lost is not None:
                on_lost()
            raise RetriableError(f"{_called(request)} not answered: {error!r}") from error
        except (kafka_errors.KafkaError, RuntimeError) as error:
            refused = self._manager.refused()
            if refused is not None:
                raise refused from error
            raise SparkEosError(f"{_called(request)}: {error!r}") from error

    def send_together(
        self, requests: Iterable[Any], deadline: Deadline, *, node: int
    ) -> list[Any | None]:
        """Sends requests to a node without waiting in between.

        Returns:
            The answers, in the order of the requests; None where none came.
        """
        return self._send_all([(node, request) for request in requests], deadline)

    def send_to_each(self, request: Any, nodes: Iterable[int], deadline: Deadline) -> list[Any]:
        """Sends a request to many nodes at a time; as `send_together`, in the nodes' order."""
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
            # Else the wait for a connection would not be bounded by the request's time.
            until = Deadline(timeout_ms / 1000, deadline.setting)
            return [
                await _or_none(self._manager.wait_for(answer, until.remaining() * 1000))
                for answer in under_way
            ]

        try:
            found: list[Any | None] = net.run(exchange)
        except kafka_errors.UnknownBrokerIdError:
            # It has left the cluster since it was named.
            self._manager.cluster.request_update()
            return [None] * len(sent)
        except RuntimeError as error:
            raise SparkEosError(f"the connections are closed: {error!r}") from error
        return found

    def address(self, node: int) -> str:
        """A broker as the cluster's metadata names it: ``2 (host:9092)``."""
        broker = self._manager.cluster.broker_metadata(node)
        return str(node) if broker is None else f"{node} ({broker.host}:{broker.port})"

    def ask(
        self,
        request: Any,
        deadline: Deadline,
        *,
        interpret: Callable[[Any], Result],
        node: int | None = None,
    ) -> Result:
        """Sends to a node, or any, until ``interpret`` accepts the answer (no `RetriableError`)."""

        def attempt() -> Result:
            return interpret(self.send(request, deadline, node=node))

        return deadline.attempts(_called(request))(attempt)

    def coordinator(self, kind: CoordinatorType, key: str, deadline: Deadline) -> int:
        """Node id of the coordinator of a group or transactional id; remembered once found."""
        found = self._coordinators.get((kind, key))
        if found is not None:
            return found
        request = FindCoordinatorRequest(coordinator_keys=[key], key_type=int(kind))
        answer = self.send(request, deadline).coordinators[0]
        if answer.error_code in _RETRY_HERE | _RETRY_ELSEWHERE:
            raise RetriableError(
                f"{kind.name.lower()} coordinator: {code_names([answer.error_code])}"
            )
        if answer.error_code:
            needed = (
                acls.describe(ResourceType.GROUP, key)
                if kind is CoordinatorType.GROUP
                else acls.transactional_ids(id_prefix_of(key), Operation.DESCRIBE)
            )
            raise refusal(
                f"finding the {kind.name.lower()} coordinator of {key!r}",
                answer.error_code,
                [needed],
                self.grantee,
            )
        self._coordinators[kind, key] = answer.node_id
        return int(answer.node_id)

    def find_coordinator(self, kind: CoordinatorType, key: str, deadline: Deadline) -> int:
        """As `coordinator`, again until it is found.

        Raises:
            AuthorizationError: the group or transactional id may not be described.
        """
        find = functools.partial(self.coordinator, kind, key, deadline)
        return deadline.attempts(f"the {kind.name.lower()} coordinator of {key!r}")(find)

    def forget_coordinator(self, kind: CoordinatorType, key: str) -> None:
        """Makes the next request look the coordinator up again."""
        self._coordinators.pop((kind, key), None)

    def ask_coordinator(
        self,
        kind: CoordinatorType,
        key: str,
        request: Any,
        deadline: Deadline,
        *,
        codes: Codes,
        retry: Iterable[int] = (),
        in_words: Callable[[Any], str] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> Any:
        """Sends to a coordinator until it gives a final answer.

        Lost connections, loading and moved coordinators (14, 15, 16) are retried; all other
        codes are the caller's to judge.

        Args:
            kind: group or transaction.
            key: the group id or transactional id.
            request: a kafka-python message; it may be sent several times.
            deadline: over all attempts.
            codes: takes the error codes out of an answer.
            retry: further codes to retry.
            in_words: puts an answer that is retried into words for the error; else its codes.
            on_lost: called for each request whose answer was lost.

        Raises:
            DeadlineExceededError: no final answer in time.
        """
        retriable = {*retry, *_RETRY_HERE, *_RETRY_ELSEWHERE}

        def attempt() -> Any:
            node = self.coordinator(kind, key, deadline)
            try:
                response = self.send(request, deadline, node=node, on_lost=on_lost)
            except RetriableError:
                self.forget_coordinator(kind, key)
                raise
            found = set(codes(response))
            if found & _RETRY_ELSEWHERE:
                self.forget_coordinator(kind, key)
            if found & retriable:
                words = code_names(found) if in_words is None else in_words(response)
                raise RetriableError(f"{_called(request)}: {words}")
            return response

        what = f"{_called(request)} for {kind.name.lower()} {key!r}"
        return deadline.attempts(what)(attempt)


def _called(request: Any) -> str:
    return str(request.name).removesuffix("Request")


async def _or_none(answer: Any) -> Any | None:
    try:
        return await answer
    except (kafka_errors.KafkaError, OSError):
        return None
