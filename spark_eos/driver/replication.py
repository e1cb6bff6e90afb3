"""Warns of topics whose committed records one broker's crash may hide (KAFKA-20734)."""

import logging
from typing import Final

from spark_eos.kafka import cluster
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline

logger = logging.getLogger(__name__)

_INTERNAL: Final = ("__consumer_offsets", "__transaction_state")


def warn_of_single_replicas(wire: Wire, target: str | None, deadline: Deadline) -> None:
    """Logs one warning that names the topics with a single-replica partition.

    Args:
        wire: Connections.
        target: The default target topic, if there is one.
        deadline: Time limit of all attempts.
    """
    names = {*_INTERNAL} if target is None else {*_INTERNAL, target}
    if single := cluster.topics_with_one_replica(wire, names, deadline):
        logger.warning(
            "a single replica in topics: %s. If the broker that holds it crashes right after a "
            "commit, Kafka may leave the committed records invisible to consumers, or lose them "
            "(KAFKA-20734). Give these topics three replicas with kafka-reassign-partitions.sh; "
            "if there are fewer than three brokers, add some first",
            ", ".join(single),
        )
