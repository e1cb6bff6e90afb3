"""How safely topics keep acknowledged records: their replicas, and configs about these."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from spark_eos._client.checks import is_loopback
from spark_eos._kafka.cluster import metadata_request
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.topic_configs import config_values

_MIN_INSYNC: Final = "min.insync.replicas"
_UNCLEAN: Final = "unclean.leader.election.enable"


@dataclass(frozen=True)
class Durability:
    """How safely a topic keeps acknowledged records.

    Attributes:
        replicas: The fewest replicas that a partition of the topic has.
        min_insync_replicas: Replicas that must have a record before it is acknowledged; None if
            the broker does not tell.
        unclean_election: Whether a replica that lacks records may become leader; None likewise.
    """

    replicas: int
    min_insync_replicas: int | None
    unclean_election: bool | None

    @property
    def unsafe_configs(self) -> dict[str, str]:
        """The configs that may lose acknowledged records, as far as they are known."""
        found = {}
        if self.replicas > 1 and self.min_insync_replicas == 1:
            found[_MIN_INSYNC] = "1"
        if self.replicas > 1 and self.unclean_election:
            found[_UNCLEAN] = "true"
        return found


SAFE: Final = {_MIN_INSYNC: "2", _UNCLEAN: "false"}
"""What to set in place of `Durability.unsafe_configs`."""


def durability(
    connections: Connections, names: Collection[str], deadline: Deadline
) -> tuple[dict[str, Durability], bool]:
    """Looks up how safely topics, internal ones included, keep records.

    Topics that do not exist, or that this client may not describe, are left out. Also returns
    whether the cluster is one broker on this machine, for trying things out.
    """

    def fewest(response: Any) -> tuple[dict[str, int], bool]:
        replicas = {
            topic.name: min(len(partition.replica_nodes) for partition in topic.partitions)
            for topic in sorted(response.topics, key=lambda topic: str(topic.name))
            if topic.partitions
        }
        return replicas, [is_loopback(broker.host) for broker in response.brokers] == [True]

    replicas, local = connections.ask(metadata_request(names), deadline, interpret=fewest)
    several = [name for name, count in replicas.items() if count > 1]
    configs = config_values(connections, several, (_MIN_INSYNC, _UNCLEAN), deadline)
    topics = {
        name: Durability(
            count,
            int(least) if (least := found.get(_MIN_INSYNC)) else None,
            found[_UNCLEAN] == "true" if found.get(_UNCLEAN) else None,
        )
        for name, count in replicas.items()
        for found in [configs.get(name) or {}]
    }
    return topics, local
