"""Makes dead letters of the rows of one task that can't be written as they are."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from spark_eos.batch import dead_letters as reasons
from spark_eos.batch.dead_letters import DeadLetterSettings, DeadLetterTally
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.worker.dead_letters import (
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
from spark_eos.worker.librdkafka_errors import TransactionError
from spark_eos.worker.record_sender import Letters
from spark_eos.worker.records import SourceRows, message_contents
from spark_eos.worker.refusals import Refusals
from spark_eos.worker.source_records import SourceRecords
from spark_eos.worker.target_topics import TargetTopics


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


class LetterMaker:
    """The dead letters of one task, transaction by transaction.

    Args:
        settings: The writer's settings.
        letters: Its settings of dead letters.
        targets: The topics of the open transaction.
        refusals: What brokers have refused in this task.

    Attributes:
        tally: The dead letters of the open transaction.
        by_partition: Their number by source partition.
    """

    def __init__(
        self,
        settings: WriterSettings,
        letters: DeadLetterSettings,
        targets: TargetTopics,
        refusals: Refusals,
    ) -> None:
        self._settings = settings
        self._letters = letters
        self._targets = targets
        self._refusals = refusals
        self._sources = SourceRecords(settings)
        # Of the dead-letter topic, looked up once in each transaction.
        self._partitions: int | None = None
        self.tally = DeadLetterTally()
        self.by_partition: dict[tuple[str, int], int] = {}

    def begin(self) -> None:
        """Forgets the dead letters of the last transaction."""
        self.tally, self.by_partition = DeadLetterTally(), {}
        self._partitions = None

    def check_without_waiting(self, found: SourceRows, topics: list[str | None]) -> None:
        """Checks that `judge` does not have to wait for topics or partitions.

        Args:
            found: The rows.
            topics: Each row's target topic.

        Raises:
            WaitAheadError: It has to.
            TransactionError: The cluster does not answer, or does not allow to write.
        """
        self._targets.check_known(set(topics))
        partitions = self._targets.partitions(self._targets.looked_up(set(topics)))
        if unknown := rows_for_unknown_partition(found, topics, partitions):
            self._targets.check_awaited(greatest_partitions(found, topics, unknown))

    def judge(self, found: SourceRows, topics: list[str | None]) -> dict[int, Fault]:
        """The rows that must not be written as they are, by row.

        Args:
            found: The rows.
            topics: Each row's target topic; replaced by the dead-letter topic in those rows.

        Raises:
            TransactionError: The cluster does not answer, or does not allow to write.
        """
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
        if self._refusals.concern(topics):
            for row, content in enumerate(message_contents(found)):
                topic = topics[row]
                if row not in faults and topic is not None:
                    fault = self._refusals.fault(topic, *content)
                    if fault is not None:
                        faults[row] = fault
        for row in faults:
            topics[row] = self._letters.topic
        return faults

    def letters(
        self, found: SourceRows, faults: dict[int, Fault], on_delivery: Callable[..., None]
    ) -> Letters:
        """How the rows are replaced by dead letters.

        Args:
            found: The rows.
            faults: The rows to replace.
            on_delivery: Called with each record's error, or None, and the message.

        Raises:
            TransactionError: A source record can't be read, or a letter can't be written.
        """
        made = {row: self._letter(found, row, fault, on_delivery) for row, fault in faults.items()}
        letters = set(made)
        without_value: set[int] = set()

        def too_large(row: int) -> tuple[Any, ...]:
            if row in without_value:
                raise self._too_large(found.position(row))
            if row in letters:
                without_value.add(row)
                fault = faults[row]
            else:
                fault = faults[row] = Fault(
                    reasons.TOO_LARGE,
                    "the record is larger than this client sends (kafka['message.max.bytes'])",
                )
            arguments = self._letter(
                found, row, fault, on_delivery, counts=row not in letters, omit=row in without_value
            )
            letters.add(row)
            return arguments

        return Letters(made, too_large)

    def _letter(
        self,
        found: SourceRows,
        row: int,
        fault: Fault,
        on_delivery: Callable[..., None],
        *,
        counts: bool = True,
        omit: bool = False,
    ) -> tuple[Any, ...]:
        letters = self._letters
        if self._partitions is None:
            self._partitions = self._targets.letter_partitions(letters.topic)
        record = self._record(found, row)
        if fault.reason == reasons.INVALID_RECORD and not self._letters.positions:
            # Perhaps its timestamp is at fault, which the dead-letter topic would refuse as well.
            record = replace(record, timestamp=0)
        headers = letter_headers(
            letters, self._settings.group_id, found, row, fault, record, omitted=omit
        )
        refused = self._refused(record, record.value, headers)
        if refused is not None and refused.reason == reasons.TOO_LARGE and not omit:
            omit = True
            headers = letter_headers(
                letters, self._settings.group_id, found, row, fault, record, omitted=True
            )
            refused = self._refused(record, None, headers)
        if refused is not None:
            raise TransactionError(
                f"{found.position(row)} can't be written to dead_letter_topic "
                f"{letters.topic!r}: {refused.message}",
                again=False,
            )
        if counts:
            # Only the first position of each reason is kept, and making its text takes a while.
            first = fault.reason not in self.tally.first
            self.tally.add(fault.reason, found.position(row) if first else "", fault.message)
            place = (found.topic, found.partition)
            self.by_partition[place] = self.by_partition.get(place, 0) + 1
        return letter_arguments(
            letters, self._partitions, found, record, headers, on_delivery, omitted=omit
        )

    def _refused(
        self, record: RawRecord, value: bytes | None, headers: list[tuple[str, bytes | None]]
    ) -> Fault | None:
        topic = self._letters.topic
        return self._refusals.fault(topic, record.key, value, headers, record.timestamp)

    def _record(self, found: SourceRows, row: int) -> RawRecord:
        record = carried_record(found, row)
        if record is None and self._letters.positions:
            offset = found.offsets[row].as_py()
            record = self._sources.fetch(found.topic, found.partition, offset)
        return record or written_record(found, row)

    def _too_large(self, position: str) -> TransactionError:
        return TransactionError(
            f"{position} can't be written to dead_letter_topic {self._letters.topic!r}: key and "
            "headers alone are too large. Raise kafka['message.max.bytes'] and the topic's "
            "max.message.bytes",
            again=False,
        )

    def close(self) -> None:
        """Closes the connections to the source topics."""
        self._sources.close()
