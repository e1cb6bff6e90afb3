"""The connection to a cluster: brokers, and the coordinators of groups and transactions."""

import enum
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from spark_eos import acls
from spark_eos._client.error_codes import Code, code_names, refusal
from spark_eos._client.kafka_python import FindCoordinatorRequest, api_name
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.brokers import BrokerConnections
from spark_eos._kafka.deadline import Deadline, RetriableError
from spark_eos._kafka.transactional_ids import id_prefix_of
from spark_eos.acls import Operation, ResourceType

_RETRY_HERE: Final = {Code.COORDINATOR_LOAD_IN_PROGRESS}
_RETRY_ELSEWHERE: Final = {Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR}


class CoordinatorType(enum.IntEnum):
    """Key types of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class Connections(BrokerConnections):
    """Connections to one cluster that also find coordinators; safe to use from any thread."""

    def __init__(self, settings: ClientSettings, *, request_timeout: float = 10.0) -> None:
        super().__init__(settings, request_timeout=request_timeout)
        self._coordinators: dict[tuple[CoordinatorType, str], int] = {}

    def coordinator(self, kind: CoordinatorType, key: str, deadline: Deadline) -> int:
        """The node id of a coordinator, looked up once and then cached."""
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
                self.principal,
            )
        self._coordinators[kind, key] = answer.node_id
        return int(answer.node_id)

    def find_coordinator(self, kind: CoordinatorType, key: str, deadline: Deadline) -> int:
        """Like `coordinator`, but retries until the coordinator is found."""
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
        codes: Callable[[Any], Iterable[int]],
        retry: Iterable[int] = (),
        in_words: Callable[[Any], str] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> Any:
        """Sends a request to a coordinator until it gives a final answer.

        Lost connections and coordinators that are loading or have moved (14, 15, 16) are retried.
        The caller judges all other error codes.
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
                raise RetriableError(f"{api_name(request)}: {words}")
            return response

        what = f"{api_name(request)} for {kind.name.lower()} {key!r}"
        return deadline.attempts(what)(attempt)


@contextmanager
def reached(settings: ClientSettings, seconds: float, limit: str) -> Iterator[Connections]:
    """Connections to a cluster that has answered; ``limit`` names the setting of the seconds."""
    with closing(Connections(settings, request_timeout=min(10.0, seconds))) as connections:
        # First of all, so that the error says "unreachable" and not which later call failed.
        connections.brokers(Deadline(seconds, limit))
        yield connections
