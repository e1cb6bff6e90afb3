"""Topic configs from DescribeConfigs: the records that a topic accepts, and their durability."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from spark_eos._client.checks import is_loopback
from spark_eos._client.kafka_python import DescribeConfigsRequest
from spark_eos._kafka.cluster import metadata_request
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline

_TOPIC: Final = 2
_NAMES: Final = (
    "max.message.bytes",
    "cleanup.policy",
    "compression.type",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "retention.ms",
)
_UNSAFE: Final = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
SAFE: Final = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}
"""Safe values for `Durability.unsafe_configs`."""
BROKERS_DEFAULT: Final = 1_048_588
"""The brokers' default of a topic's ``max.message.bytes``."""


@dataclass(frozen=True)
class TopicConfig:
    """The rules by which brokers accept records for a topic and later delete them."""

    # The limit of a record batch, both as sent and as stored.
    max_message_bytes: int
    # If true, every record needs a key.
    compacted: bool = False
    # The compression of stored batches; "producer" keeps the sender's.
    compression: str = "producer"
    # How far a timestamp may be before and after the broker's clock; None if it isn't checked.
    before_max_ms: int | None = None
    after_max_ms: int | None = None
    # The age, by its own timestamp, at which a record is deleted; None if age doesn't matter.
    retention_ms: int | None = None


_Values = Mapping[str, str | None]


def _config_values(
    connections: Connections, topics: Collection[str], names: Collection[str], deadline: Deadline
) -> dict[str, _Values | None]:
    """Ask for configs of topics; None for a topic whose configs the broker doesn't return."""
    if not topics:
        return {}
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=_TOPIC, resource_name=topic, configuration_keys=list(names)
            )
            for topic in sorted(topics)
        ],
        include_synonyms=False,
    )

    def values(response: Any) -> dict[str, _Values | None]:
        return {
            result.resource_name: None
            if result.error_code
            else {config.name: config.value for config in result.configs}
            for result in response.results
        }

    return connections.ask(request, deadline, interpret=values)


def topic_configs(
    connections: Connections, names: Collection[str], deadline: Deadline
) -> dict[str, TopicConfig | None]:
    """Ask for the configs of topics; None for a topic whose configs the broker doesn't return."""
    configs = _config_values(connections, names, _NAMES, deadline)
    return {topic: None if values is None else _config(values) for topic, values in configs.items()}


def _config(given: _Values) -> TopicConfig | None:
    values = {name: text for name, text in given.items() if text is not None}
    if not values.keys() >= set(_NAMES):
        return None
    judged = values["message.timestamp.type"] == "CreateTime"
    retention = int(values["retention.ms"])
    deletes = judged and retention >= 0 and "delete" in values["cleanup.policy"]
    return TopicConfig(
        max_message_bytes=int(values["max.message.bytes"]),
        compacted="compact" in values["cleanup.policy"],
        compression=values["compression.type"],
        before_max_ms=int(values["message.timestamp.before.max.ms"]) if judged else None,
        after_max_ms=int(values["message.timestamp.after.max.ms"]) if judged else None,
        retention_ms=retention if deletes else None,
    )


class Durability(NamedTuple):
    """The lowest replica count among a topic's partitions, and configs that may lose records."""

    replicas: int
    unsafe_configs: Mapping[str, str]


def durability(
    connections: Connections, names: Collection[str], deadline: Deadline
) -> tuple[dict[str, Durability], bool]:
    """Return how safely topics keep records, and True if the cluster is a single local broker."""
    # Topics that don't exist, or that this client may not describe, are left out.

    def fewest(response: Any) -> tuple[dict[str, int], bool]:
        replicas = {
            topic.name: min(len(partition.replica_nodes) for partition in topic.partitions)
            for topic in sorted(response.topics, key=lambda topic: str(topic.name))
            if topic.partitions
        }
        return replicas, [is_loopback(broker.host) for broker in response.brokers] == [True]

    replicas, local = connections.ask(metadata_request(names), deadline, interpret=fewest)
    several = [name for name, count in replicas.items() if count > 1]
    configs = _config_values(connections, several, _UNSAFE, deadline)
    topics = {
        name: Durability(count, dict(_UNSAFE.items() & (configs.get(name) or {}).items()))
        for name, count in replicas.items()
    }
    return topics, local
