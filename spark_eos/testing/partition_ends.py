"""Where partitions end, for those who read committed records only."""

from collections.abc import Collection, Mapping
from contextlib import ExitStack, closing
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition
from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_delay, wait_fixed

from spark_eos.testing.broker_admin import TIMEOUT

Ends = dict[int, int]

# Nobody joins it.
_GROUP: Final = "spark-eos-testing"


def settled_ends(
    settings: Mapping[str, Any], topic: str, partitions: Collection[int], settle: float
) -> tuple[Ends, Ends]:
    """Return last stable offsets and ends, by partition, at best once they are the same.

    The markers of a transaction may be written a moment after its end is acknowledged: they are
    waited for, up to `settle` seconds. After that a transaction is still open.

    Args:
        settings: Of librdkafka, with which to connect.
        topic: An existing topic.
        partitions: Which of its partitions.
        settle: Seconds to wait.

    Raises:
        confluent_kafka.KafkaException: The broker refuses, or does not answer.
    """
    with ExitStack() as stack:
        committed, uncommitted = (
            stack.enter_context(closing(Consumer({**settings, "group.id": _GROUP, **level})))
            for level in (
                {"isolation.level": "read_committed"},
                {"isolation.level": "read_uncommitted"},
            )
        )

        def ends() -> tuple[Ends, Ends]:
            # In this order the end is never the older of the two.
            return _ends(committed, topic, partitions), _ends(uncommitted, topic, partitions)

        def last(state: RetryCallState) -> tuple[Ends, Ends]:
            return ends() if state.outcome is None else state.outcome.result()

        return Retrying(
            retry=retry_if_result(lambda found: found[0] != found[1]),
            wait=wait_fixed(0.02),
            stop=stop_after_delay(settle),
            retry_error_callback=last,
        )(ends)


def _ends(consumer: Consumer, topic: str, partitions: Collection[int]) -> Ends:
    return {
        p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=TIMEOUT)[1]
        for p in partitions
    }
