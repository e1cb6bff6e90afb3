"""The target topic as its consumers see it: each order counted, by read_committed."""

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

_AT_ONCE: Final = 2_000
_TIMEOUT: Final = 10.0


class LingeringTransactionError(Exception):
    """A topic's last stable offset does not reach its end: a transaction is still open."""


class TargetReader:
    """Reads a topic with read_committed, again and again, and counts each order id.

    Args:
        bootstrap_servers: The cluster.
        topic: The topic.
        partitions: Its number of partitions.
    """

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.counts: Counter[str] = Counter()
        self._partitions = [TopicPartition(topic, index, 0) for index in range(partitions)]
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                # Nothing is committed; librdkafka asks for a group all the same.
                "group.id": f"spark-eos-demo-{uuid.uuid4()}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        # Where each partition was found to end; a position does not count the commit markers.
        self._seen_until: dict[int | None, int] = {}
        self._consumer.assign(self._partitions)

    def __enter__(self) -> "TargetReader":
        return self

    def __exit__(self, *_: object) -> None:
        """Closes its connections."""
        self._consumer.close()

    def read(self, timeout: float) -> None:
        """Counts what has become visible, waiting for at most this many seconds for any."""
        values = []
        for message in self._consumer.consume(_AT_ONCE, timeout=timeout):
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - that is its name
                self._seen_until[message.partition()] = message.offset() or 0
            else:
                raise RuntimeError(f"reading the target: {error.str()}")
        self.count(values)

    def count(self, values: Iterable[bytes | None]) -> None:
        """Counts orders by their ids."""
        self.counts.update(json.loads(value)["order_id"] for value in values if value is not None)

    def read_all(self, patience: float = 30) -> None:
        """Counts everything there is.

        Args:
            patience: Seconds within which the last stable offset must reach the end offset.

        Raises:
            LingeringTransactionError: It does not.
        """
        until = time.monotonic() + patience
        while (ends := self._ends(IsolationLevel.READ_UNCOMMITTED)) != (
            stable := self._ends(IsolationLevel.READ_COMMITTED)
        ):
            if time.monotonic() > until:
                raise LingeringTransactionError(
                    f"after {patience:g} s the last stable offsets are {stable}, the ends {ends}"
                )
            time.sleep(0.1)
        while any(self._seen_until.get(index, -1) < end for index, end in enumerate(ends)):
            if time.monotonic() > until:
                raise LingeringTransactionError(f"read_committed did not get to the ends {ends}")
            self.read(0.1)

    def _ends(self, isolation: IsolationLevel) -> list[int]:
        return end_offsets(self._admin, self._partitions, isolation)


def end_offsets(
    admin: AdminClient,
    partitions: Sequence[TopicPartition],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> list[int]:
    """The partitions' end offsets; with read_committed, their last stable offsets."""
    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    found = admin.list_offsets(
        dict.fromkeys(partitions, latest), isolation_level=isolation, request_timeout=_TIMEOUT
    )
    return [found[partition].result(_TIMEOUT).offset for partition in partitions]
