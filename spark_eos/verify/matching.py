"""How output records are matched with input records, and the ledger's rows of both."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Message

from spark_eos.client.header_values import header_number
from spark_eos.client.letter_headers import read_letter_headers
from spark_eos.client.message_headers import headers_of
from spark_eos.errors import ConfigurationError, VerificationError
from spark_eos.verify.ledger import AHEAD, DONE, DUE, Id, InputRow, OutputRow
from spark_eos.verify.places import OFFSETS, SHIFT, Places
from spark_eos.verify.reading import Batch

# The largest number of outputs of one record; their sum must fit into 64 bits.
_MAX_EXPECTED: Final = (1 << 31) - 1
# Errors and findings show at most so many bytes of a header.
_SHOWN: Final = 100


@dataclass(frozen=True)
class Matching:
    """What records are matched by: exactly one of the first three.

    Attributes:
        position_header: Output header that holds the source's ``topic:partition:offset``.
        header: Header with the same value in input and output.
        key: Whether the key is the same in input and output.
        expect_header: Input header that holds the number of outputs expected of the record.
        dead_letter_topics: Outputs that hold dead letters, whose headers tell their position.
        at_most_once_each: Whether a record may have fewer outputs than expected, or none.

    Raises:
        ConfigurationError: None or several of the first three are given, or a name is empty.
    """

    position_header: str | None = None
    header: str | None = None
    key: bool = False
    expect_header: str | None = None
    dead_letter_topics: Collection[str] = ()
    at_most_once_each: bool = False

    def __post_init__(self) -> None:
        if (self.position_header is not None) + (self.header is not None) + self.key != 1:
            raise ConfigurationError(
                "give exactly one of --position-header, --header and --key to match records by"
            )
        if "" in (self.position_header, self.header, self.expect_header):
            raise ConfigurationError("the name of a header must not be empty")

    @property
    def by_position(self) -> bool:
        """Whether a record's id is its position."""
        return self.position_header is not None

    def name(self) -> Callable[[Message], Id | None]:
        """Returns the function that extracts a record's header or key."""
        if self.key:
            return lambda message: message.key()
        header = self.header or ""
        return lambda message: _header(message, header)


def _header(message: Message, name: str) -> bytes | None:
    """Returns the value of a header; the last one if there are several."""
    return dict(headers_of(message) or ()).get(name)


def _letter_position(message: Message) -> bytes | None:
    """The source position of a dead letter, as its headers tell it in one of three styles."""
    told = read_letter_headers(headers_of(message) or ()).told
    parts = [told.get(name, b"") for name in ("topic", "partition", "offset")]
    return b":".join(parts) if all(parts) else None


class Progress:
    """Compares input positions with the group's offsets from before and after reading the outputs.

    Args:
        places: The partitions.
        before: Offsets by input place, from before; a place without one counts as 0.
        after: Offsets by input place, from after. None for both means that there is no group,
            and all input is due.
    """

    def __init__(
        self, places: Places, before: Mapping[int, int] | None, after: Mapping[int, int] | None
    ) -> None:
        self._due = {place: _bound(place, before) for place in places.inputs}
        self._done = {place: _bound(place, after) for place in places.inputs}

    def standings(self, batch: Batch) -> list[int]:
        """Returns `ledger.DUE`, `DONE` or `AHEAD` for each record."""
        due, done = self._due, self._done
        return [
            DUE if at < due[at >> SHIFT] else DONE if at < done[at >> SHIFT] else AHEAD
            for at, _ in batch
        ]


def _bound(place: int, offsets: Mapping[int, int] | None) -> int:
    return place + 1 << SHIFT if offsets is None else (place << SHIFT) + offsets.get(place, 0)


def input_rows(
    batch: Batch, matching: Matching, places: Places, progress: Progress
) -> list[InputRow]:
    """Turns input records into rows.

    Raises:
        VerificationError: A record lacks the header or key to match it by, or its header of
            expected outputs is not a number.
    """
    header = matching.expect_header
    standings = progress.standings(batch)
    if matching.by_position and header is None:
        return [(at, at, 1, standing) for (at, _), standing in zip(batch, standings, strict=True)]
    name = matching.name()
    rows: list[InputRow] = []
    for (at, message), standing in zip(batch, standings, strict=True):
        found = at if matching.by_position else name(message)
        if found is None:
            what = "key" if matching.key else f"header {matching.header!r}"
            raise VerificationError(
                f"input {places.position(at)} has no {what} to match it by; "
                "--position-header needs nothing in the input"
            )
        expected = 1 if header is None else _expected(message, header, at, places)
        rows.append((found, at, expected, standing))
    return rows


def _expected(message: Message, header: str, at: int, places: Places) -> int:
    value = _header(message, header)
    if value is None and headers_of(message) is None:
        raise VerificationError(
            f"input {places.position(at)}: how many outputs are expected is not known, since the "
            "name of a header is not UTF-8"
        )
    if value is None:
        return 1
    number = header_number(value, _MAX_EXPECTED)
    if number is None:
        raise VerificationError(
            f"input {places.position(at)}: header {header!r} is not a number of outputs: "
            f"{value[:_SHOWN]!r}"
        )
    return number


class Outputs:
    """Turns output records into rows.

    Args:
        matching: What records are matched by.
        places: The partitions.
    """

    def __init__(self, matching: Matching, places: Places) -> None:
        self._matching = matching
        self._header = matching.position_header
        self._name = matching.name()
        # Dead letters tell their source's position in headers of their own.
        self._letters = {
            place
            for place in places.outputs
            if places.partition(place)[0] in matching.dead_letter_topics
        }
        self._bases = {places.name(place).encode(): place << SHIFT for place in places.inputs}
        # By output place: the highest source position so far, by input place.
        self._highest: dict[int, dict[int, int]] = {place: {} for place in places.outputs}
        self.first: dict[int, dict[int, int]] = {place: {} for place in places.outputs}
        """The first source offset in each output place, by input place."""

    def rows(self, batch: Batch) -> tuple[list[OutputRow], list[tuple[int, bytes | None]]]:
        """Returns rows, and strays: records that refer to no input partition."""
        if self._header is not None:
            return self._by_position(batch, self._header)
        name = self._name
        rows: list[OutputRow] = []
        strays: list[tuple[int, bytes | None]] = []
        for at, message in batch:
            found = name(message)
            if found is None:
                strays.append((at, None))
            else:
                rows.append((found, at, 0))
        return rows, strays

    def _by_position(
        self, batch: Batch, header: str
    ) -> tuple[list[OutputRow], list[tuple[int, bytes | None]]]:
        bases = self._bases
        rows: list[OutputRow] = []
        strays: list[tuple[int, bytes | None]] = []
        for at, message in batch:
            letter = at >> SHIFT in self._letters
            value = _letter_position(message) if letter else _header(message, header)
            partition, _, offset = (value or b"").rpartition(b":")
            base = bases.get(partition)
            number = header_number(offset, OFFSETS)
            if base is None or number is None:
                strays.append((at, value and value[:_SHOWN]))
                continue
            source = base + number
            highest = self._highest[at >> SHIFT]
            place = source >> SHIFT
            last = highest.get(place)
            if last is None:
                self.first[at >> SHIFT][place] = source & OFFSETS
                highest[place] = source
                rows.append((source, at, 0))
            elif source < last:
                rows.append((source, at, 1 + (last & OFFSETS)))
            else:
                highest[place] = source
                rows.append((source, at, 0))
        return rows, strays
