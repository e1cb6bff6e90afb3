"""What a task does when brokers refuse some of a transaction's records."""

from collections.abc import Callable, Sequence
from typing import Final

from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.kafka.deadline import Deadline
from spark_eos.worker.librdkafka_errors import TransactionError
from spark_eos.worker.producer import TransactionalProducer
from spark_eos.worker.records import SourceRows, message_contents, target_topics
from spark_eos.worker.refusals import Refusals, RefusedRecordsError

# Each refusal teaches a rule. Only records that a broker names one by one could need more.
_MAX_REFUSALS: Final = 50


class RefusedRows:
    """The rows of one task's open transaction, to write them again without those refused.

    Args:
        producer: The worker's producer.
        settings: The writer's settings.
        refusals: What brokers have refused so far; probing adds to it.

    Attributes:
        parts: The rows of the open transaction, as they were added.
    """

    def __init__(
        self, producer: TransactionalProducer, settings: WriterSettings, refusals: Refusals
    ) -> None:
        self._producer = producer
        self._settings = settings
        self._refusals = refusals
        # Whether a transaction is open that only probes what brokers accept.
        self._probes = False
        self.parts: list[SourceRows] = []

    def without(
        self,
        action: Callable[[], None],
        again: Callable[[], None],
        give_up: Callable[[], None],
    ) -> None:
        """Does something; if brokers refuse records meanwhile, does it without those.

        A refusal dooms the transaction. So it is aborted, and all of its rows are written again in
        a new one, the refused ones as dead letters. Nothing of it was committed, and whoever may
        not write any more is refused at the new one's commit.

        Args:
            action: What to do.
            again: What to do instead after a refusal, with all rows of the transaction.
            give_up: Aborts the transaction.

        Raises:
            TransactionError: As ``action``; or brokers refuse records, and none is to blame.
        """
        for _ in range(_MAX_REFUSALS):
            try:
                action()
            except RefusedRecordsError as refusal:
                give_up()
                try:
                    learn = self._refusals.learn
                    if not learn(refusal.refused, self._is_accepted, self._timestamps):
                        raise
                finally:
                    self._end_probes()
                action = again
            else:
                return
        raise TransactionError(
            f"brokers have refused records of the same transaction {_MAX_REFUSALS} times; it "
            f"begins with {self.parts[0].position(0)}",
            again=False,
        )

    def _timestamps(self, topic: str) -> set[int]:
        """The timestamps of the transaction's rows for a topic."""
        return {
            timestamp
            for part in self.parts
            for target, (_key, _value, _headers, timestamp) in zip(
                target_topics(part, self._settings.topic), message_contents(part), strict=True
            )
            if target == topic
        }

    def _is_accepted(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp: int,
    ) -> bool:
        """Whether a broker takes a record, sent alone in a transaction that is aborted."""
        deadline = Deadline(self._settings.connect_timeout_ms / 1000, "connect_timeout_ms")
        if not self._probes:
            self._producer.begin()
            self._probes = True
        try:
            records = self._producer.records
            records.produce_one(topic, partition, key, value, headers, timestamp)
            records.flush(deadline)
        except RefusedRecordsError:
            self._end_probes()
            return False
        return True

    def _end_probes(self) -> None:
        if self._probes:
            self._probes = False
            self._producer.drop()
