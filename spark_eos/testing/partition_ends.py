"""The ends of partitions, as consumers with an isolation level see them."""

import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from spark_eos.testing.broker_admin import TIMEOUT

_PAUSE: Final = 0.02

Ends = dict[int, int]
"""Offset by partition number."""


def end_offsets(
    admin: AdminClient,
    topic: str,
    partitions: Collection[int],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Ends:
    """Return the partitions' high watermarks, or with read_committed their last stable offsets.

    Raises:
        confluent_kafka.KafkaException: The broker refuses, or does not answer within 30 seconds.
    """
    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    found = admin.list_offsets(
        {TopicPartition(topic, partition): latest for partition in partitions},
        isolation_level=isolation,
        request_timeout=TIMEOUT,
    )
    return {at.partition: future.result(TIMEOUT).offset for at, future in found.items()}


def settled_ends(
    settings: Mapping[str, Any], topic: str, partitions: Collection[int], settle: float
) -> tuple[Ends, Ends]:
    """Wait until last stable offsets and high watermarks are equal; return both.

    A transaction's markers may be written a moment after its end is acknowledged. If the offsets
    still differ after the wait, a transaction is open.

    Args:
        settings: Client settings by their librdkafka names.
        topic: An existing topic.
        partitions: Numbers of the partitions.
        settle: Maximum number of seconds to wait.

    Raises:
        confluent_kafka.KafkaException: The broker refuses, or does not answer within 30 seconds.
    """
    # Nothing else may refer to the client: an AdminClient closes only when it is collected, and
    # while it lives it tries to reach brokers, also those that have gone. Its log is off, since
    # it has a line about clients that close right after an answer, and errors are raised.
    admin = AdminClient({"log_level": 0, **settings})
    until = time.monotonic() + settle
    while True:
        # In this order, so that the high watermarks are never the older of the two.
        stable = end_offsets(admin, topic, partitions, IsolationLevel.READ_COMMITTED)
        ends = end_offsets(admin, topic, partitions)
        if stable == ends or time.monotonic() >= until:
            return stable, ends
        time.sleep(_PAUSE)
