"""Matches output records with input records, and turns both into rows for SQL."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Message

from spark_eos._client.confluent_traps import headers_of
from spark_eos.errors import ConfigurationError, VerificationError
from spark_eos.verify.headers import dead_letter, header, number
from spark_eos.verify.input_offsets import InputOffsets
from spark_eos.verify.partitions import OFFSETS, SHIFT, Partitions, name_of
from spark_eos.verify.questions import AHEAD, DONE, DUE, Id, InputRow, OutputRow
from spark_eos.verify.records import Batch

# Maximum number of outputs of one record; the sum over all records must fit into 64 bits.
_MAX_EXPECTED: Final = (1 << 31) - 1
# Maximum number of bytes of a header shown in errors and findings.
_SHOWN: Final = 100

NoSourceRow = tuple[int, bytes | None]
"""A record that refers to no input partition: its position, and its header or key."""


@dataclass(frozen=True)
class Matching:
    """How records are matched: by exactly one of the first three fields; see `verify`."""

    position_header: str | None = None
    header: str | None = None
    key: bool = False
    expect_header: str | None = None
    dead_letter_topics: Collection[str] = ()
    at_most_once_each: bool = False

    def __post_init__(self) -> None:
        if (self.position_header is not None) + (self.header is not None) + self.key != 1:
            raise ConfigurationError(
                "give exactly one of --position-header, --header and --key to match records by, or "
                "--expect"
            )
        if "" in (self.position_header, self.header, self.expect_header):
            raise ConfigurationError("the name of a header must not be empty")

    @property
    def by_position(self) -> bool:
        """True if the id of a record is its position."""
        return self.position_header is not None

    def missing(self, records: int, topics: Collection[str]) -> VerificationError:
        """Return the error for outputs that all lack the header or key to match by."""
        if self.by_position:
            what = f"a header {self.position_header!r} (--position-header)"
            remedy = (
                "Let the query write it (the page Verifying shows how), or match by --key, or by "
                "a --header that the query passes on"
            )
        elif self.key:
            what = "a key"
            remedy = "Let the query pass it on, or match by --position-header or --header"
        else:
            what = f"a header {self.header!r}"
            remedy = (
                "Let the query pass it on (sink.read with include_headers=True, and the column "
                "headers in each select), or match by --position-header or --key"
            )
        return VerificationError(
            f"none of the {records:,} records of {', '.join(topics)} has {what} to match it by. "
            f"{remedy}. If outputs have no single input, compare them with rows that you compute "
            "(--expect)"
        )

    def name(self) -> Callable[[Message], Id | None]:
        """Return the function that extracts a record's header or key."""
        if self.key:
            return lambda message: message.key()
        name = self.header or ""
        return lambda message: header(message, name)


class Inputs:
    """Turns input records into rows."""

    def __init__(
        self,
        matching: Matching,
        partitions: Partitions,
        before: InputOffsets | None,
        after: InputOffsets | None,
    ) -> None:
        self._matching = matching
        self._partitions = partitions
        # Bounds from before and after the outputs were read. Without a group (None), all input is
        # due.
        self._due = _bounds(partitions, before)
        self._done = _bounds(partitions, after)

    def rows(self, batch: Batch) -> list[InputRow]:
        """Return the rows of a batch.

        Raises:
            VerificationError: A record can't be matched, or its number of outputs is unknown.
        """
        due, done = self._due, self._done
        standings = [
            DUE if at < due[at >> SHIFT] else DONE if at < done[at >> SHIFT] else AHEAD
            for at, _ in batch
        ]
        by_position, expect = self._matching.by_position, self._matching.expect_header
        if by_position and expect is None:
            return [
                (at, at, 1, standing) for (at, _), standing in zip(batch, standings, strict=True)
            ]
        name = self._matching.name()
        rows: list[InputRow] = []
        for (at, message), standing in zip(batch, standings, strict=True):
            key = at if by_position else name(message)
            if key is None:
                what = "key" if self._matching.key else f"header {self._matching.header!r}"
                if not self._matching.key and headers_of(message) is None:
                    what = "readable headers, since the name of one is not UTF-8,"
                raise VerificationError(
                    f"input {self._partitions.position(at)} has no {what} to match it by; "
                    "--position-header needs nothing in the input"
                )
            expected = 1 if expect is None else self._expected(message, expect, at)
            rows.append((key, at, expected, standing))
        return rows

    def _expected(self, message: Message, name: str, at: int) -> int:
        value = header(message, name)
        if value is None and headers_of(message) is None:
            raise VerificationError(
                f"input {self._partitions.position(at)}: the number of expected outputs is not "
                "known, since the name of a header is not UTF-8"
            )
        if value is None:
            return 1
        parsed = number(value, _MAX_EXPECTED)
        if parsed is None:
            raise VerificationError(
                f"input {self._partitions.position(at)}: header {name!r} is not a number of "
                f"outputs: {value[:_SHOWN]!r}"
            )
        return parsed


def _bounds(partitions: Partitions, offsets: InputOffsets | None) -> list[int]:
    """Return, by partition number, the first position that the group has not committed."""
    return [
        base + (OFFSETS + 1 if offsets is None else offsets.committed.get(partition, 0))
        for partition, base in partitions.bases.items()
    ]


class Outputs:
    """Turns output records into rows, and tracks source order within each output partition."""

    def __init__(
        self, matching: Matching, inputs: Partitions, outputs: Partitions, group_id: str | None
    ) -> None:
        self._header = matching.position_header
        self._name = matching.name()
        self._inputs = inputs
        self._outputs = outputs
        # Dead letters hold their source's position in their own headers.
        self._dead_letter_partitions = {
            base >> SHIFT
            for partition, base in outputs.bases.items()
            if partition.topic in matching.dead_letter_topics
        }
        self._group = None if group_id is None else group_id.encode()
        # A record whose headers name no topic is not a dead letter, so it is judged.
        self._topics = {b"", *(partition.topic.encode() for partition in inputs)}
        # Number of dead letters to judge, by group, and number of records from other queries.
        self.letters: Counter[bytes] = Counter()
        self.others = 0
        self._bases = {
            name_of(partition).encode(): base for partition, base in inputs.bases.items()
        }
        self._matching = matching
        # Number of outputs outside dead-letter topics, and whether any of these outputs has the
        # header or key to match by.
        self._plain = 0
        self._named = False
        # Highest source position so far, by output partition number and input partition number.
        self._highest: list[dict[int, int]] = [{} for _ in outputs]

    def rows(self, batch: Batch) -> tuple[list[OutputRow], list[NoSourceRow]]:
        """Return the rows of records that refer to an input, and of records that don't."""
        if self._dead_letter_partitions:
            batch = [record for record in batch if not self._is_from_other_query(*record)]
        if self._header is not None:
            rows, without = self._by_position(batch, self._header)
        else:
            rows, without = self._by_name(batch)
        if not self._named:
            self._plain += sum(at >> SHIFT not in self._dead_letter_partitions for at, _ in batch)
            named = [
                *(at for _, at, _ in rows),
                *(at for at, value in without if value is not None),
            ]
            self._named = any(at >> SHIFT not in self._dead_letter_partitions for at in named)
        return rows, without

    def check_named(self) -> None:
        """Raise VerificationError if no record has the header or key to match by."""
        if self._plain and not self._named:
            dead_letter_topics = self._matching.dead_letter_topics
            topics = {partition.topic for partition in self._outputs} - {*dead_letter_topics}
            raise self._matching.missing(self._plain, sorted(topics))

    def _is_from_other_query(self, at: int, message: Message) -> bool:
        """Return True for another query's record in a dead-letter topic; count dead letters."""
        if at >> SHIFT not in self._dead_letter_partitions:
            return False
        parsed = dead_letter(headers_of(message) or ())
        # Without a group, dead letters are known to come from another query only if their source
        # topic is not an input.
        if self._group is None:
            other = parsed.topic not in self._topics
        else:
            other = parsed.group != self._group
        if other:
            self.others += 1
        elif parsed.topic:
            self.letters[parsed.group] += 1
        return other

    def _by_name(self, batch: Batch) -> tuple[list[OutputRow], list[NoSourceRow]]:
        rows: list[OutputRow] = []
        without: list[NoSourceRow] = []
        for at, message in batch:
            key = self._name(message)
            if key is None:
                without.append((at, None))
            else:
                rows.append((key, at, 0))
        return rows, without

    def _by_position(self, batch: Batch, name: str) -> tuple[list[OutputRow], list[NoSourceRow]]:
        bases = self._bases
        rows: list[OutputRow] = []
        without: list[NoSourceRow] = []
        for at, message in batch:
            output = at >> SHIFT
            value = (
                dead_letter(headers_of(message) or ()).position
                if output in self._dead_letter_partitions
                else header(message, name)
            )
            partition, _, offset = (value or b"").rpartition(b":")
            base = bases.get(partition)
            parsed = number(offset, OFFSETS)
            if base is None or parsed is None:
                without.append((at, value and value[:_SHOWN]))
                continue
            source = base + parsed
            highest, source_number = self._highest[output], base >> SHIFT
            last = highest.get(source_number)
            if last is not None and source < last:
                rows.append((source, at, 1 + (last & OFFSETS)))
                continue
            highest[source_number] = source
            rows.append((source, at, 0))
        return rows, without
