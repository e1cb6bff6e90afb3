"""Refuses a task's rows that can't be written, if the query has no dead-letter topic."""

from collections.abc import Mapping
from typing import Final

from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker import dead_letter_settings as reasons
from spark_eos._worker.dead_letter_settings import DeadLetterTally
from spark_eos._worker.dead_letters import Fault, rows_for_unknown_partition
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.records import (
    INVALID_HEADER,
    RecordContent,
    RowTopics,
    SourceRows,
    rows_with_invalid_header,
)
from spark_eos._worker.topic_rules import TopicRules

_REMEDIES: Final = {
    reasons.TOO_LARGE: (
        "Raise the topic's max.message.bytes, kafka['message.max.bytes'] and, for larger values, "
        "kafka['queue.buffering.max.kbytes']"
    ),
    reasons.INVALID_RECORD: "Correct the row",
}


class NoDeadLetters:
    """Has the methods of `DeadLetterBuilder`; a row that can't be written ends the query."""

    def __init__(self, rules: TopicRules) -> None:
        self._rules = rules
        self.counts = DeadLetterTally()
        self.by_partition: dict[TopicPartition, int] = {}

    def begin(self) -> None:
        """There is nothing to forget."""

    def ready(self, part: SourceRows, topics: RowTopics) -> bool:
        """Return True: `classify` waits for nothing."""
        del part, topics
        return True

    def classify(self, part: SourceRows, topics: RowTopics) -> dict[int, Fault]:
        """Return no faults: no row is replaced."""
        del part, topics
        return {}

    def check(self, part: SourceRows, topics: RowTopics) -> None:
        """Raise a `TransactionError` for the first row that can't be written."""
        for row in rows_with_invalid_header(part.rows):
            raise TransactionError(f"{part.position(row)}: {INVALID_HEADER}", again=False)
        # Check only for partitions below 0: librdkafka refuses partitions that do not exist.
        for row, fault in rows_for_unknown_partition(part, topics, {}).items():
            raise TransactionError(f"{part.position(row)}: {fault.message}", again=False)
        for row, fault in self._rules.faults(part, topics).items():
            raise TransactionError(
                f"{part.position(row)}, for topic {topics[row]!r}: {fault.message}. "
                f"{_REMEDIES[fault.reason]}, or name a topic for such rows (dead_letters)",
                again=False,
            )

    def count(self, part: SourceRows, faults: Mapping[int, Fault]) -> None:
        """Count nothing: there are no faults."""

    def dead_letters(
        self, part: SourceRows, faults: Mapping[int, Fault]
    ) -> dict[int, RecordContent]:
        """Return no dead letters."""
        del part, faults
        return {}

    def close(self) -> None:
        """There is nothing to close."""
