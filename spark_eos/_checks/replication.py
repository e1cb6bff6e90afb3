"""Warns of topics that may lose or hide acknowledged records."""

import logging
from collections.abc import Collection, Mapping
from typing import Final

from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.topic_configs import SAFE, Durability, durability
from spark_eos.errors import warn

logger = logging.getLogger(__name__)

_INTERNAL: Final = ("__consumer_offsets", "__transaction_state")


def warn_of_replication(
    connections: Connections, targets: Collection[str], deadline: Deadline
) -> None:
    """Warn of topics with a single replica, and of configs that lose records."""
    # A lone broker on this machine is expected to have a single replica.
    durable, local = durability(connections, {*_INTERNAL, *targets}, deadline)
    single = [topic for topic, kept in durable.items() if kept.replicas == 1]
    if single and not local:
        warn(
            logger,
            "EOS52",
            "only one replica of %s: a broker crash can lose or hide committed records "
            "(KAFKA-20734). Use three replicas; kafka-reassign-partitions.sh adds them",
            ", ".join(single),
        )
    if unsafe := {topic: kept for topic, kept in durable.items() if kept.unsafe_configs}:
        warn(
            logger,
            "EOS52",
            "Kafka may lose acknowledged records of topics: %s. Exactly-once writes need two "
            "replicas in sync, and a leader that has all records: %s",
            ", ".join(
                f"{topic} ({_assignments(kept.unsafe_configs)})" for topic, kept in unsafe.items()
            ),
            "; ".join(_command(connections, topic, kept) for topic, kept in unsafe.items()),
        )


def _assignments(configs: Mapping[str, str], separator: str = ", ") -> str:
    return separator.join(f"{name}={value}" for name, value in sorted(configs.items()))


def _command(connections: Connections, topic: str, kept: Durability) -> str:
    safe = _assignments({name: SAFE[name] for name in kept.unsafe_configs}, ",")
    which = ("--alter", "--entity-type", "topics", "--entity-name", topic)
    return connections.principal.tool("kafka-configs.sh", *which, "--add-config", safe)
