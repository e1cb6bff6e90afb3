"""Skips brokers that don't answer while others do, and remembers their names."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from spark_eos._client.kafka_python import api_name
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline, RetriableError

_PATIENCE: Final = 3.0
"""Seconds without an answer after which a broker counts as down.

Metadata may list a dead broker long after other brokers have taken over its partitions and groups.
"""


class SilentBrokers:
    """Asks brokers; a broker that doesn't answer for some seconds is skipped from then on."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        # When a broker first failed to answer, by node id.
        self._since: dict[int, float] = {}
        # The names of skipped brokers, by node id.
        self._named: dict[int, str] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Node ids and addresses of the skipped brokers, such as ``2 (host:9092)``."""
        return tuple(self._named.values())

    def __contains__(self, node: int) -> bool:
        return node in self._named

    def ask(self, requests: Mapping[int, Any], deadline: Deadline) -> dict[int, Any]:
        """Return the nodes' answers; raise `RetriableError` while an unskipped node is silent."""
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
        """Ask all brokers, like `ask`; also raise `RetriableError` if none answers."""
        # List the brokers each time: a broker that has died eventually leaves the list.
        nodes = self._connections.brokers(deadline)
        answers = self.ask(dict.fromkeys(nodes, request), deadline)
        if not answers:
            names = self.names
            self._named.clear()
            raise RetriableError(f"{api_name(request)}: {does_not_answer(names)}")
        return answers


def does_not_answer(names: Iterable[str]) -> str:
    return f"broker {', '.join(sorted(names))} does not answer"
