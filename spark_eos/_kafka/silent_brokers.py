"""Brokers that do not answer while others do: passed over after some seconds, and named."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from spark_eos._client.kafka_python import api_name
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline, RetriableError

_PATIENCE: Final = 3.0
"""Seconds after which a broker that does not answer counts as down.

Metadata may name it long after it died, when others already have what it led and coordinated.
"""


class SilentBrokers:
    """Asks brokers; those that do not answer for some seconds are passed over from then on."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        # By node id: when it was first asked in vain; and the names of those passed over.
        self._since: dict[int, float] = {}
        self._named: dict[int, str] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Node ids and addresses of those passed over, such as ``2 (host:9092)``."""
        return tuple(self._named.values())

    def __contains__(self, node: int) -> bool:
        return node in self._named

    def ask(self, requests: Mapping[int, Any], deadline: Deadline) -> dict[int, Any]:
        """The answers to each node's request; retriable while one that is not passed over lacks."""
        now = time.monotonic()
        asked = {node: request for node, request in requests.items() if node not in self._named}
        ends = {node: self._since.get(node, now) + _PATIENCE for node in asked}
        left = min((end - now for end in ends.values()), default=0.0)
        within = Deadline(min(left, deadline.remaining()), deadline.setting)
        answers = self._connections.send_to_each(asked, within)
        waited_for = []
        for node in asked.keys() - answers.keys():
            self._since.setdefault(node, now)
            name = self._connections.address(node, deadline)
            if time.monotonic() < ends[node]:
                waited_for.append(name)
            else:
                self._named[node] = name
        if waited_for:
            what = api_name(asked[min(asked)])
            raise RetriableError(f"{what}: {does_not_answer(waited_for)}")
        return answers

    def ask_all(self, request: Any, deadline: Deadline) -> dict[int, Any]:
        """The answers of all brokers to a request, and of one at least; retriable like `ask`."""
        # Read again each time: a broker that has died does not stay in the list.
        nodes = self._connections.brokers(deadline)
        answers = self.ask(dict.fromkeys(nodes, request), deadline)
        if not answers:
            names = self.names
            self._named.clear()
            raise RetriableError(f"{api_name(request)}: {does_not_answer(names)}")
        return answers


def does_not_answer(names: Iterable[str]) -> str:
    return f"broker {', '.join(sorted(names))} does not answer"
