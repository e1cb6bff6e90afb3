"""Makes dead letters from a task's rows that can't be written as they are."""

from collections.abc import Mapping

from spark_eos._client.confluent_traps import UNREADABLE
from spark_eos._client.letter_headers import read_letter_headers, replaced_headers
from spark_eos._client.librdkafka_api import ANY_PARTITION
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker import dead_letter_settings as reasons
from spark_eos._worker.dead_letter_settings import DeadLetterSettings, DeadLetterTally
from spark_eos._worker.dead_letters import (
    Fault,
    carried_record,
    greatest_partitions,
    letter_headers,
    rows_for_unknown_partition,
    rows_with_error,
    without_largest,
)
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.records import (
    INVALID_HEADER,
    RecordContent,
    RowTopics,
    SourceRows,
    record_content,
    rows_with_invalid_header,
)
from spark_eos._worker.source_records import SourceRecords
from spark_eos._worker.target_topics import TargetTopics
from spark_eos._worker.topic_rules import TopicRules
from spark_eos._worker.writer_settings import WriterSettings


class DeadLetterBuilder:
    """Builds the dead letters of one task, transaction by transaction."""

    def __init__(
        self,
        settings: WriterSettings,
        dead_letters: DeadLetterSettings,
        targets: TargetTopics,
        rules: TopicRules,
    ) -> None:
        self._settings = settings
        self._dead_letters = dead_letters
        self._targets = targets
        self._rules = rules
        self._sources = SourceRecords(settings)
        # Number of partitions of the dead-letter topic, looked up once per transaction.
        self._partitions: int | None = None
        self.counts = DeadLetterTally()
        self.by_partition: dict[TopicPartition, int] = {}

    def begin(self) -> None:
        """Forget the dead letters of the last transaction."""
        self.counts, self.by_partition = DeadLetterTally(), {}
        self._partitions = None

    def ready(self, part: SourceRows, topics: RowTopics) -> bool:
        """Return True if `classify` will not wait for partitions."""
        partitions = self._targets.partitions(self._targets.known(topics.names))
        unknown = rows_for_unknown_partition(part, topics, partitions)
        wanted = greatest_partitions(part, topics, unknown) if unknown else {}
        return self._targets.ready_for_partitions(wanted)

    def classify(self, part: SourceRows, topics: RowTopics) -> dict[int, Fault]:
        """Return the faults of the rows that must not be written as they are, by row."""
        header = Fault(reasons.INVALID_HEADER, INVALID_HEADER)
        faults = dict.fromkeys(rows_with_invalid_header(part.rows), header)
        faults |= rows_with_error(part)
        names = topics.firsts(without=faults).keys()
        missing = self._targets.missing(part, names)
        for name in names & missing.keys():
            fault = Fault(reasons.UNKNOWN_TOPIC, missing[name])
            faults = dict.fromkeys(topics.rows(name).tolist(), fault) | faults
        partitions = self._targets.partitions(names - missing.keys())
        if unknown := rows_for_unknown_partition(part, topics, partitions):
            # Look again: the topics may have more partitions by now.
            if wanted := greatest_partitions(part, topics, unknown):
                partitions |= self._targets.partitions(wanted.keys(), wanted)
            faults = rows_for_unknown_partition(part, topics, partitions) | faults
        return faults | self._rules.faults(part, topics, without=faults)

    def check(self, part: SourceRows, topics: RowTopics) -> None:
        """Refuse nothing: rows that can't be written become dead letters."""

    def count(self, part: SourceRows, faults: Mapping[int, Fault]) -> None:
        """Count the dead letters that `dead_letters` will make of these rows."""
        for row in sorted(faults):
            fault = faults[row]
            # Only each reason's first position is kept, so don't build a text for later positions.
            first = fault.reason not in self.counts.first
            self.counts.add(fault.reason, part.position(row) if first else "", fault.message)
        if faults:
            counted = self.by_partition.get(part.partition, 0)
            self.by_partition[part.partition] = counted + len(faults)

    def dead_letters(
        self, part: SourceRows, faults: Mapping[int, Fault]
    ) -> dict[int, RecordContent]:
        """Return the dead letters that replace rows, by row."""
        return {row: self._dead_letter(part, row, faults[row]) for row in sorted(faults)}

    def _dead_letter(self, part: SourceRows, row: int, fault: Fault) -> RecordContent:
        settings = self._dead_letters
        if self._partitions is None:
            self._partitions = self._targets.letter_partitions(settings.topic)
        own = part.source.partition % self._partitions
        partition = own if settings.positions else ANY_PARTITION
        record, is_all = carried_record(part, row)
        if settings.positions and not is_all:
            record = self._sources.fetch(part.source, part.offsets[row].as_py()) or record
        is_row = record is None
        record = record or record_content(part.rows, row)
        omitted = [] if record.headers is not None else [UNREADABLE]
        # The record may be a dead letter itself, whose explanation is replaced.
        earlier = read_letter_headers(record.headers or ())
        if "omitted" in earlier.error_headers:
            omitted.append(earlier.error_headers["omitted"].decode(errors="replace"))
        if replaced := replaced_headers(settings.headers, earlier.own):
            omitted.append(f"{len(replaced)} of its headers, such as {replaced[0]}")
        brief = False
        while True:
            headers = letter_headers(
                settings,
                self._settings.group_id,
                part,
                row,
                fault,
                record,
                is_row=is_row,
                omitted=omitted,
                brief=brief,
            )
            # A dead letter's timestamp is the time of writing, because retention counts from there.
            # A header keeps the record's own timestamp.
            dead_letter = RecordContent(record.key, record.value, headers, None, partition)
            refused = self._rules.fault(settings.topic, dead_letter)
            if refused is None or refused.reason != reasons.TOO_LARGE:
                break
            smaller = without_largest(record, keep_key=self._needs_key())
            if smaller is not None:
                record, left_out = smaller
                omitted.append(left_out)
            elif brief:
                break
            brief = smaller is None
        if refused is not None:
            raise self._refusal(part.position(row), refused)
        return dead_letter

    def _needs_key(self) -> bool:
        """Return True if the dead-letter topic refuses records without a key."""
        no_key = RecordContent(None, b"", (), None)
        return self._rules.fault(self._dead_letters.topic, no_key) is not None

    def _refusal(self, position: str, fault: Fault) -> TransactionError:
        what = fault.message
        if fault.reason == reasons.TOO_LARGE:
            what = (
                "the headers that explain it are too large by themselves, or, in a compacted "
                "topic, together with its key. Raise kafka['message.max.bytes'] and the topic's "
                "max.message.bytes"
            )
        return TransactionError(
            f"{position} can't be written to the dead-letter topic {self._dead_letters.topic!r}: "
            f"{what}",
            again=False,
        )

    def close(self) -> None:
        """Close the connections to the source topics."""
        self._sources.close()
