"""The target topic as its consumers see it, while it is written: rows read with read_committed."""

import uuid
from collections import Counter
from typing import Final

from confluent_kafka import Consumer, TopicPartition

_ROWS_AT_ONCE: Final = 2_000


class TargetReader:
    """Reads a topic's rows as they become visible; ``rows`` counts each key and value."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.rows: Counter[tuple[object, object]] = Counter()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                # Nothing is committed, but librdkafka requires a group id.
                "group.id": f"spark-eos-demo-{uuid.uuid4()}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])

    def close(self) -> None:
        """Closes the connections."""
        self._consumer.close()

    @property
    def duplicates(self) -> int:
        """Number of rows after the first of the same key and value."""
        return self.rows.total() - len(self.rows)

    def read(self, timeout: float) -> bool:
        """Counts newly visible rows, if any come within ``timeout`` seconds; whether they did."""
        messages = self._consumer.consume(_ROWS_AT_ONCE, timeout=timeout)
        for message in messages:
            error = message.error()
            if error is not None:
                raise RuntimeError(f"reading the target: {error.str()}")
        self.rows.update((message.key(), message.value()) for message in messages)
        return bool(messages)

    def read_until_quiet(self, timeout: float) -> None:
        """Counts rows until no further one becomes visible for ``timeout`` seconds."""
        while self.read(timeout):
            pass
