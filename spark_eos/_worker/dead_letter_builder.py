"""Makes dead letters of the rows of one task that can't be written as they are."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from spark_eos._batch import dead_letters as reasons
from spark_eos._batch.dead_letters import DeadLetterSettings, DeadLetterTally
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._client.timestamps import NOW
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.dead_letters import (
    Fault,
    RawRecord,
    carried_record,
    greatest_partitions,
    letter_arguments,
    letter_headers,
    rows_for_unknown_partition,
    rows_with_error,
    rows_with_invalid_header,
    written_record,
)
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.records import SourceRows
from spark_eos._worker.source_records import SourceRecords
from spark_eos._worker.target_topics import TargetTopics
from spark_eos._worker.topic_rules import TopicRules


def _names_without(topics: Sequence[str | None], rows: Collection[int]) -> set[str | None]:
    """The topics of all but some rows."""
    # Not row by row, which takes longer than all other checks: there are few faults.
    names: set[str | None] = set()
    start = 0
    for row in sorted(rows):
        names.update(topics[start:row])
        start = row + 1
    names.update(topics[start:])
    return names


class DeadLetterBuilder:
    """The dead letters of one task, transaction by transaction."""

    def __init__(
        self,
        settings: WriterSettings,
        letters: DeadLetterSettings,
        targets: TargetTopics,
        rules: TopicRules,
    ) -> None:
        self._settings = settings
        self._letters = letters
        self._targets = targets
        self._rules = rules
        self._sources = SourceRecords(settings)
        # Of the dead-letter topic, looked up once in each transaction.
        self._partitions: int | None = None
        self.counts = DeadLetterTally()
        self.by_partition: dict[TopicPartition, int] = {}

    def begin(self) -> None:
        """Forgets the dead letters of the last transaction."""
        self.counts, self.by_partition = DeadLetterTally(), {}
        self._partitions = None

    def ready(self, found: SourceRows, topics: list[str | None]) -> bool:
        """Whether `classify` does not wait for partitions."""
        partitions = self._targets.partitions(self._targets.known(set(topics)))
        unknown = rows_for_unknown_partition(found, topics, partitions)
        wanted = greatest_partitions(found, topics, unknown) if unknown else {}
        return self._targets.ready_for_partitions(wanted)

    def classify(self, found: SourceRows, topics: list[str | None]) -> dict[int, Fault]:
        """The rows that must not be written as they are, by row."""
        faults = rows_with_error(found)
        faults = rows_with_invalid_header(found) | faults
        names = _names_without(topics, faults)
        if missing := self._targets.missing(names):
            for row, topic in enumerate(topics):
                if row not in faults and topic in missing:
                    faults[row] = Fault(reasons.UNKNOWN_TOPIC, missing[topic])
        partitions = self._targets.partitions
        if unknown := rows_for_unknown_partition(found, topics, partitions(names)):
            # Partitions may have been added.
            wanted = greatest_partitions(found, topics, unknown)
            now = partitions(wanted.keys(), wanted)
            unknown = rows_for_unknown_partition(found, topics, now)
            faults = unknown | faults
        for row in faults:
            topics[row] = self._letters.topic
        refused = self._rules.faults(found, topics, without=faults)
        for row in refused:
            topics[row] = self._letters.topic
        return faults | refused

    def dead_letters(
        self, found: SourceRows, faults: dict[int, Fault], on_delivery: Callable[..., None]
    ) -> dict[int, tuple[Any, ...]]:
        """Arguments of ``Producer.produce`` for the dead letters that replace rows, by row."""
        return {row: self._letter(found, row, fault, on_delivery) for row, fault in faults.items()}

    def _letter(
        self, found: SourceRows, row: int, fault: Fault, on_delivery: Callable[..., None]
    ) -> tuple[Any, ...]:
        letters = self._letters
        if self._partitions is None:
            self._partitions = self._targets.letter_partitions(letters.topic)
        record = self._record(found, row)
        for omitted in (False, True):
            headers = letter_headers(
                letters, self._settings.group_id, found, row, fault, record, omitted=omitted
            )
            value = None if omitted else record.value
            refused = self._rules.fault(letters.topic, record.key, value, headers, NOW)
            if refused is None or refused.reason != reasons.TOO_LARGE:
                break
        if refused is not None:
            raise self._refusal(found.position(row), refused)
        # Only the first position of each reason is kept, and making its text takes a while.
        first = fault.reason not in self.counts.first
        self.counts.add(fault.reason, found.position(row) if first else "", fault.message)
        self.by_partition[found.source] = self.by_partition.get(found.source, 0) + 1
        return letter_arguments(
            letters, self._partitions, found, record, headers, on_delivery, omitted=omitted
        )

    def _record(self, found: SourceRows, row: int) -> RawRecord:
        record = carried_record(found, row)
        if record is None and self._letters.positions:
            offset = found.offsets[row].as_py()
            record = self._sources.fetch(found.source, offset)
        return record or written_record(found, row)

    def _refusal(self, position: str, fault: Fault) -> TransactionError:
        what = fault.message
        if fault.reason == reasons.TOO_LARGE:
            what = (
                "key and headers alone are too large. Raise kafka['message.max.bytes'] and the "
                "topic's max.message.bytes"
            )
        return TransactionError(
            f"{position} can't be written to the dead-letter topic {self._letters.topic!r}: {what}",
            again=False,
        )

    def close(self) -> None:
        """Closes the connections to the source topics."""
        self._sources.close()
