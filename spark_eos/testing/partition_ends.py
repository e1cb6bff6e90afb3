"""The ends of partitions, as consumers with an isolation level see them."""

import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient

from spark_eos.testing.broker_admin import Ends, end_offsets

_PAUSE: Final = 0.02


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
