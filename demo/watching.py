"""A query as seen from outside: its checkpoint, and its target as consumers see it."""

import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Consumer, TopicPartition

_ROWS_AT_ONCE: Final = 2_000


class RunningBatch(NamedTuple):
    """A batch that Spark has started; ``start`` and ``end`` count all orders up to its bounds."""

    number: int
    start: int
    end: int


class Checkpoint:
    """A query's checkpoint, which shows the running batch and the query's progress."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def running(self) -> RunningBatch | None:
        """The batch that is not yet in the commit log, or None between batches."""
        begun = self._newest("offsets")
        if begun is None or begun == self._newest("commits"):
            return None
        return RunningBatch(begun, self._orders_until(begun - 1), self._orders_until(begun))

    def finished_orders(self) -> int:
        """Number of orders in all batches of the commit log."""
        last = self._newest("commits")
        return 0 if last is None else self._orders_until(last)

    def has_finished(self, batch: RunningBatch) -> bool:
        """Return True if the batch is in the commit log."""
        return (self.directory / "commits" / str(batch.number)).exists()

    def _orders_until(self, number: int) -> int:
        if number < 0:
            return 0
        # The topic is read from offset 0 and has no gaps, so its end offsets count its records.
        last_line = (self.directory / "offsets" / str(number)).read_text().splitlines()[-1]
        return sum(sum(ends.values()) for ends in json.loads(last_line).values())

    def _newest(self, log: str) -> int | None:
        # Spark's temporary files begin with a dot.
        names = (path.name for path in (self.directory / log).glob("[0-9]*"))
        return max((int(name) for name in names if name.isdigit()), default=None)


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
        """Counts rows that become visible within ``timeout`` seconds; returns True if any did."""
        messages = self._consumer.consume(_ROWS_AT_ONCE, timeout=timeout)
        for message in messages:
            error = message.error()
            if error is not None:
                raise RuntimeError(f"reading the target: {error.str()}")
        self.rows.update((message.key(), message.value()) for message in messages)
        return bool(messages)

    def read_until_quiet(self, timeout: float) -> None:
        """Counts rows until no more become visible for ``timeout`` seconds."""
        while self.read(timeout):
            pass
