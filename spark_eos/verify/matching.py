"""How output records are matched with input records, and the rows of both for SQL."""

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

# The largest number of outputs of one record; their sum must fit into 64 bits.
_MAX_EXPECTED: Final = (1 << 31) - 1
# Errors and findings show at most so many bytes of a header.
_SHOWN: Final = 100

NoSourceRow = tuple[int, bytes | None]
"""A record that refers to no input partition: its position, and its header or key."""


@dataclass(frozen=True)
class Matching:
    """What records are matched by: exactly one of the first three; see `verify`."""

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
        """True if a record's id is its position."""
        return self.position_header is not None

    def missing(self, records: int, topics: Collection[str]) -> VerificationError:
        """Return the error for outputs of which none has what they are to be matched by."""
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
            f"{remedy}. Output that no single input makes is compared with your own (--expect)"
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
        # From before and after the outputs were read; without a group, None, all input is due.
        self._due = _bounds(partitions, before)
        self._done = _bounds(partitions, after)

    def rows(self, batch: Batch) -> list[InputRow]:
        """Raise VerificationError for a record that can't be matched, or has no number."""
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
                f"input {self._partitions.position(at)}: how many outputs are expected is not "
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
    """By a partition's number, the first position that the group has not committed."""
    return [
        base + (OFFSETS + 1 if offsets is None else offsets.committed.get(partition, 0))
        for partition, base in partitions.bases.items()
    ]


class Outputs:
    """Turns output records into rows; keeps the order of sources in each output partition."""

    def __init__(
        self, matching: Matching, inputs: Partitions, outputs: Partitions, group_id: str | None
    ) -> None:
        self._header = matching.position_header
        self._name = matching.name()
        self._inputs = inputs
        self._outputs = outputs
        # Dead letters say their source's position in headers of their own.
        self._letters = {
            base >> SHIFT
            for partition, base in outputs.bases.items()
            if partition.topic in matching.dead_letter_topics
        }
        self._group = None if group_id is None else group_id.encode()
        # What names no topic is no letter, so it is judged.
        self._topics = {b"", *(partition.topic.encode() for partition in inputs)}
        # How many dead letters count, by group; and how many records of their topics do not.
        self.letters: Counter[bytes] = Counter()
        self.others = 0
        self._bases = {
            name_of(partition).encode(): base for partition, base in inputs.bases.items()
        }
        self._matching = matching
        # Outputs that are no dead letters, and whether one has what it is to be matched by.
        self._plain = 0
        self._named = False
        # By number of the output partition and of the input partition.
        self._highest: list[dict[int, int]] = [{} for _ in outputs]

    def rows(self, batch: Batch) -> tuple[list[OutputRow], list[NoSourceRow]]:
        """Return the rows of records that refer to an input, and of those that don't."""
        if self._letters:
            batch = [record for record in batch if not self._is_anothers(*record)]
        if self._header is not None:
            rows, without = self._by_position(batch, self._header)
        else:
            rows, without = self._by_name(batch)
        if not self._named:
            self._plain += sum(at >> SHIFT not in self._letters for at, _ in batch)
            named = [
                *(at for _, at, _ in rows),
                *(at for at, value in without if value is not None),
            ]
            self._named = any(at >> SHIFT not in self._letters for at in named)
        return rows, without

    def check_named(self) -> None:
        """Raise VerificationError if no record has what it is to be matched by."""
        if self._plain and not self._named:
            letters = self._matching.dead_letter_topics
            topics = {partition.topic for partition in self._outputs} - {*letters}
            raise self._matching.missing(self._plain, sorted(topics))

    def _is_anothers(self, at: int, message: Message) -> bool:
        """Whether a record of a dead-letter topic is not the query's; counts it either way."""
        if at >> SHIFT not in self._letters:
            return False
        letter = dead_letter(headers_of(message) or ())
        # Without a group, only letters of topics that are no inputs are known to be others'.
        if self._group is None:
            anothers = letter.topic not in self._topics
        else:
            anothers = letter.group != self._group
        if anothers:
            self.others += 1
        elif letter.topic:
            self.letters[letter.group] += 1
        return anothers

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
                if output in self._letters
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
