"""Connections to a cluster: sends requests, returns answers, and finds coordinators."""

import enum
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final, TypeVar

from kafka import errors as kafka_errors

from spark_eos import acls
from spark_eos._client.connections import ConnectionManager
from spark_eos._client.error_codes import Code, code_names, refusal
from spark_eos._client.kafka_logs import our_connections
from spark_eos._client.kafka_python import EventLoop, FindCoordinatorRequest, api_name
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.deadline import Deadline, RetriableError
from spark_eos._kafka.transactional_ids import id_prefix_of
from spark_eos.acls import Acl, Operation, Principal, ResourceType
from spark_eos.errors import (
    DeadlineExceededError,
    KafkaResponseError,
    SparkEosError,
    UnsupportedBrokerError,
    warn,
)

_NOT_SENT: Final = (kafka_errors.NodeNotReadyError, kafka_errors.UnknownBrokerIdError)
_LOST: Final = (
    kafka_errors.KafkaConnectionError,
    kafka_errors.RequestTimedOutError,
    kafka_errors.KafkaTimeoutError,
    kafka_errors.Cancelled,
    OSError,
)
# The shortest timeout of a request in seconds, even if the deadline is closer.
_MIN_TIMEOUT: Final = 1.0
# Time limit for connecting to a broker if any other broker can answer instead.
_CONNECT_MS: Final = 3_000

# Seconds to wait for a cluster's first answer before logging that it is late: an answer this late
# usually never comes.
_SILENT: Final = 2.0

# The first version of FindCoordinator with a list of keys (KIP-699), since Kafka 3.0.
_BY_KEYS: Final = 4

_RETRY_HERE: Final = {Code.COORDINATOR_LOAD_IN_PROGRESS}
_RETRY_ELSEWHERE: Final = {Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR}

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class CoordinatorType(enum.IntEnum):
    GROUP = 0
    TRANSACTION = 1


class Connections:
    """Connections to the brokers of one cluster; safe to use from any thread."""

    def __init__(self, settings: ClientSettings, *, request_timeout: float = 10.0) -> None:
        self._settings = settings
        self._request_timeout = request_timeout
        self._lock = threading.Lock()
        self._open: tuple[EventLoop, ConnectionManager] | None = None
        self._closed = False
        self._coordinators: dict[tuple[CoordinatorType, str], int] = {}
        self._forgotten: dict[tuple[CoordinatorType, str], int] = {}

    @property
    def principal(self) -> Principal:
        return self._settings.principal

    @property
    def bootstrap_servers(self) -> str:
        return self._settings.bootstrap_servers

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def close(self) -> None:
        """Close all connections and end the event loop's thread. May be called again."""
        with self._lock:
            self._closed = True
            connection, self._open = self._open, None
            if connection is not None:
                loop, manager = connection
                loop.end(manager)

    def _connected(self, deadline: Deadline) -> tuple[EventLoop, ConnectionManager]:
        with self._lock:
            if self._closed:
                raise SparkEosError("the connections are closed")
            if self._open is None:
                self._open = self._connect(deadline)
            return self._open

    def _connect(self, deadline: Deadline) -> tuple[EventLoop, ConnectionManager]:
        configuration = self._settings.for_kafka_python()
        loop = EventLoop(configuration, our_connections)
        manager = ConnectionManager(loop, self._settings, configuration)
        try:
            self._reach(manager, deadline)
        except BaseException as error:
            loop.end(manager)
            if isinstance(error, SparkEosError) or not isinstance(error, Exception):
                raise
            if not isinstance(error, (*_NOT_SENT, *_LOST)):
                raise SparkEosError(
                    f"bootstrap.servers={self._settings.bootstrap_servers!r}: {error!r}"
                ) from error
            raise DeadlineExceededError(
                f"no broker of bootstrap.servers={self._settings.bootstrap_servers!r} could be "
                f"reached within {deadline.seconds:g} s ({deadline.setting}): "
                f"{manager.unreached()}"
            ) from error
        return loop, manager

    def _reach(self, manager: ConnectionManager, deadline: Deadline) -> None:
        silent = threading.Timer(_SILENT, self._warn_of_wait, (manager, deadline))
        silent.start()
        try:
            manager.reach(deadline.remaining())
        finally:
            silent.cancel()
            silent.join()

    def _warn_of_wait(self, manager: ConnectionManager, deadline: Deadline) -> None:
        warn(
            logger,
            "EOS60",
            "waiting for a broker of bootstrap.servers=%r, up to %g s (%s): %s",
            self._settings.bootstrap_servers,
            deadline.seconds,
            deadline.setting,
            manager.unreached(),
        )

    def brokers(self, deadline: Deadline) -> list[int]:
        """Return the node ids of all brokers, in order."""
        _, manager = self._connected(deadline)
        return sorted(manager.addresses())

    def addresses(self, deadline: Deadline) -> list[str]:
        """Return the addresses that brokers advertise, such as ``host:9092``."""
        _, manager = self._connected(deadline)
        return list(manager.addresses().values())

    def address(self, node: int, deadline: Deadline) -> str:
        """Return a broker's node id and address from the metadata, such as ``2 (host:9092)``."""
        _, manager = self._connected(deadline)
        address = manager.addresses().get(node)
        return str(node) if address is None else f"{node} ({address})"

    def _timeout_ms(self, deadline: Deadline) -> int:
        # The deadline limits when an attempt may start. An attempt that starts at the last moment
        # still gets enough time for a busy broker to answer.
        seconds = max(_MIN_TIMEOUT, deadline.remaining())
        return int(min(self._request_timeout, seconds) * 1000)

    def send(
        self,
        request: Any,
        deadline: Deadline,
        *,
        node: int | None = None,
        avoided: int | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> Any:
        """Send a request once, to a node or to any broker, preferably not ``avoided``."""
        loop, manager = self._connected(deadline)
        timeout_ms = self._timeout_ms(deadline)
        broker = "any broker" if node is None else f"broker {self.address(node, deadline)}"
        try:
            return loop.run(manager.answer, request, node, timeout_ms, _CONNECT_MS, avoided)
        except _NOT_SENT as error:
            manager.expire_metadata()
            raise RetriableError(
                f"{api_name(request)} not sent to {broker}: {manager.unreached(node)}"
            ) from error
        except _LOST as error:
            if on_lost is not None:
                on_lost()
            connected = node is None or manager.is_connected(node)
            reason = repr(error) if connected else manager.unreached(node)
            what = f"{api_name(request)} not answered by {broker}"
            raise RetriableError(f"{what}: {reason}") from error
        except (kafka_errors.KafkaError, RuntimeError) as error:
            refused = manager.refused()
            if refused is not None:
                raise refused from error
            raise SparkEosError(f"{api_name(request)}: {error!r}") from error

    def send_to_each(self, requests: Mapping[int, Any], deadline: Deadline) -> dict[int, Any]:
        """Send requests to several nodes in parallel; return the answers that arrive."""
        loop, manager = self._connected(deadline)
        try:
            answers = loop.run(manager.answers, requests.items(), self._timeout_ms(deadline))
        except kafka_errors.IncompatibleBrokerVersion as error:
            raise UnsupportedBrokerError(str(error.args[0])) from error
        except RuntimeError as error:
            raise SparkEosError(f"the connections are closed: {error!r}") from error
        return {
            node: answer
            for node, answer in zip(requests, answers, strict=True)
            if answer is not None
        }

    def ask(
        self,
        request: Any,
        deadline: Deadline,
        *,
        interpret: Callable[[Any], Result],
    ) -> Result:
        """Send a request until ``interpret`` accepts the answer, and return its result."""

        def attempt() -> Result:
            return interpret(self.send(request, deadline))

        return deadline.attempts(api_name(request))(attempt)

    # Coordinators -----------------------------------------------------------------------------

    def coordinator(
        self,
        kind: CoordinatorType,
        key: str,
        deadline: Deadline,
        operation: Operation = Operation.DESCRIBE,
    ) -> int:
        """Return a coordinator's (cached) node id; errors name the ACL for ``operation``."""
        node = self._coordinators.get((kind, key))
        if node is not None:
            return node
        request = FindCoordinatorRequest(
            coordinator_keys=[key], key_type=int(kind), min_version=_BY_KEYS
        )
        # A coordinator that is cut off, and so doesn't know it was replaced, keeps naming itself.
        avoided = self._forgotten.get((kind, key))
        answer = self.send(request, deadline, avoided=avoided).coordinators[0]
        if answer.error_code in _RETRY_HERE | _RETRY_ELSEWHERE:
            raise RetriableError(
                f"{kind.name.lower()} coordinator: {code_names([answer.error_code])}"
            )
        if answer.error_code:
            needed = (
                acls.Acl(ResourceType.GROUP, key, operation)
                if kind is CoordinatorType.GROUP
                else acls.transactional_ids(id_prefix_of(key), operation)
            )
            raise self.refusal(
                f"finding the {kind.name.lower()} coordinator of {key!r}",
                answer.error_code,
                [needed],
            )
        self._coordinators[kind, key] = answer.node_id
        return int(answer.node_id)

    def find_coordinator(self, kind: CoordinatorType, key: str, deadline: Deadline) -> int:
        """Like `coordinator`, but retries until the coordinator is found."""
        find = functools.partial(self.coordinator, kind, key, deadline)
        return deadline.attempts(f"the {kind.name.lower()} coordinator of {key!r}")(find)

    def forget_coordinator(self, kind: CoordinatorType, key: str) -> None:
        """Forget a coordinator, so that the next lookup asks another broker."""
        node = self._coordinators.pop((kind, key), None)
        if node is not None:
            self._forgotten[kind, key] = node

    def ask_coordinator(
        self,
        kind: CoordinatorType,
        key: str,
        request: Any,
        deadline: Deadline,
        *,
        codes: Callable[[Any], Iterable[int]],
        # The operation that the request must be authorized for.
        operation: Operation = Operation.DESCRIBE,
        retry: Iterable[int] = (),
        in_words: Callable[[Any], str] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> Any:
        """Send a request to a coordinator until it gives a final answer."""
        # Retry after a lost connection, or while the coordinator is loading or has moved (14, 15,
        # 16). The caller judges all other error codes.
        retriable = {*retry, *_RETRY_HERE, *_RETRY_ELSEWHERE}
        response = None
        for attempt in deadline.attempts(f"{api_name(request)} for {kind.name.lower()} {key!r}"):
            with attempt:
                node = self.coordinator(kind, key, deadline, operation)
                try:
                    response = self.send(request, deadline, node=node, on_lost=on_lost)
                except RetriableError:
                    self.forget_coordinator(kind, key)
                    raise
                errors = set(codes(response))
                if errors & _RETRY_ELSEWHERE:
                    self.forget_coordinator(kind, key)
                if errors & retriable:
                    words = code_names(errors) if in_words is None else in_words(response)
                    raise RetriableError(f"{api_name(request)}: {words}")
        return response

    # Errors -----------------------------------------------------------------------------------

    def refusal(self, what: str, code: int, needed: Iterable[Acl]) -> KafkaResponseError:
        """Call `spark_eos._client.error_codes.refusal` with this cluster's principal."""
        return refusal(what, code, needed, self.principal)


@contextmanager
def reached(settings: ClientSettings, seconds: float, limit: str) -> Iterator[Connections]:
    """Connect to a cluster and wait for its answer; ``limit`` names the setting for ``seconds``."""
    with closing(Connections(settings, request_timeout=min(10.0, seconds))) as connections:
        # Connect first, so that the error says "unreachable" instead of naming a later call.
        connections.brokers(Deadline(seconds, limit))
        yield connections
