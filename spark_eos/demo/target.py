"""The target topic as its consumers see it: rows counted with read_committed."""

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from spark_eos.errors import PrintableError
from spark_eos.testing.partition_ends import settled_ends

Identity = Callable[[Message], str]
"""What is the same in a row and its duplicate."""

_AT_ONCE: Final = 2_000


def order_of(message: Message) -> str:
    """Returns the id of a record's order."""
    return str(json.loads(message.value() or b"{}")["order_id"])


class LingeringTransactionError(PrintableError):
    """A topic's last stable offset does not reach its end: a transaction is still open."""


class TargetReader:
    """Reads a topic repeatedly with read_committed and counts each row.

    Args:
        bootstrap_servers: The cluster.
        topic: The topic to read.
        partitions: Number of its partitions.
        identity: What is the same in a row and its duplicate; by default the order's id.

    Attributes:
        counts: Number of records by identity.
    """

    def __init__(
        self, bootstrap_servers: str, topic: str, partitions: int, identity: Identity = order_of
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._identity = identity
        self._topic = topic
        self._partitions = range(partitions)
        self._cluster = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
        self._consumer = Consumer(
            {
                **self._cluster,
                # Nothing is committed, but librdkafka requires a group id.
                "group.id": f"spark-eos-demo-{uuid.uuid4()}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        # The end found in each partition; the consumer's position does not count commit markers.
        self._seen_until: dict[int | None, int] = {}
        self._consumer.assign([TopicPartition(topic, index, 0) for index in self._partitions])

    def __enter__(self) -> "TargetReader":
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the connections."""
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._consumer.close()

    @property
    def duplicates(self) -> int:
        """Number of records after the first of the same identity."""
        return self.counts.total() - len(self.counts)

    def read(self, timeout: float) -> None:
        """Counts newly visible rows; waits at most ``timeout`` seconds for them."""
        rows = []
        for message in self._consumer.consume(_AT_ONCE, timeout=timeout):
            error = message.error()
            if error is None:
                rows.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - that is its name
                self._seen_until[message.partition()] = message.offset() or 0
            else:
                raise RuntimeError(f"reading the target: {error.str()}")
        self.counts.update(map(self._identity, rows))

    def read_all(self, patience: float = 30) -> None:
        """Counts all rows up to the end of the topic.

        Args:
            patience: Seconds within which all rows must have become visible.

        Raises:
            LingeringTransactionError: They have not.
        """
        until = time.monotonic() + patience
        stable, ends = settled_ends(self._cluster, self._topic, self._partitions, patience)
        if stable != ends:
            raise LingeringTransactionError(
                f"after {patience:g} s the last stable offsets are {stable}, the ends {ends}"
            )
        while any(self._seen_until.get(index, -1) < end for index, end in ends.items()):
            if time.monotonic() > until:
                raise LingeringTransactionError(f"read_committed did not reach the ends {ends}")
            self.read(0.1)
