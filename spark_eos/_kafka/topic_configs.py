"""Topics' configs, asked for with DescribeConfigs; among them, what topics take."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_eos._client.kafka_python import DescribeConfigsRequest
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
)
BROKERS_DEFAULT: Final = 1_048_588
"""The ``max.message.bytes`` of a topic on brokers that were not configured otherwise."""


@dataclass(frozen=True)
class TopicConfig:
    """What brokers check of a record before they append it to a topic.

    Attributes:
        max_message_bytes: Largest record batch in bytes, as it is sent and as it is stored.
        compacted: Whether every record needs a key.
        compression: The compression type in which batches are stored; ``producer`` is the sender's.
        before_max_ms: How far a record's timestamp may lie before the broker's clock; None if
            brokers do not look at it.
        after_max_ms: The same after the clock.
    """

    max_message_bytes: int
    compacted: bool = False
    compression: str = "producer"
    before_max_ms: int | None = None
    after_max_ms: int | None = None


Values = Mapping[str, str | None]


def config_values(
    connections: Connections, topics: Collection[str], names: Collection[str], deadline: Deadline
) -> dict[str, Values | None]:
    """Asks for configs of topics; None for a topic whose configs the broker does not tell."""
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

    def values(response: Any) -> dict[str, Values | None]:
        return {
            found.resource_name: None
            if found.error_code
            else {config.name: config.value for config in found.configs}
            for found in response.results
        }

    return connections.ask(request, deadline, interpret=values)


def topic_configs(
    connections: Connections, names: Collection[str], deadline: Deadline
) -> dict[str, TopicConfig | None]:
    """Asks for the configs of topics; None for a topic whose configs the broker does not tell."""
    found = config_values(connections, names, _NAMES, deadline)
    return {topic: None if values is None else _config(values) for topic, values in found.items()}


def _config(given: Values) -> TopicConfig | None:
    values = {name: text for name, text in given.items() if text is not None}
    if not values.keys() >= set(_NAMES):
        return None
    judged = values["message.timestamp.type"] == "CreateTime"
    return TopicConfig(
        max_message_bytes=int(values["max.message.bytes"]),
        compacted="compact" in values["cleanup.policy"],
        compression=values["compression.type"],
        before_max_ms=int(values["message.timestamp.before.max.ms"]) if judged else None,
        after_max_ms=int(values["message.timestamp.after.max.ms"]) if judged else None,
    )
