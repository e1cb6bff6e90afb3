"""The results of `verify` and `compare`: plain values and a verdict."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Kind = TypeVar("_Kind", bound=enum.Enum)
_Example = TypeVar("_Example")


@dataclass(frozen=True, order=True)
class Position:
    """A record's topic, partition and offset.

    Examples:
        >>> str(Position("orders", 0, 17))
        'orders:0:17'
    """

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


class Kind(str, enum.Enum):
    """Kinds of findings; the values are the keys of the JSON document.

    Examples:
        >>> Kind("lost_writes")
        <Kind.LOST: 'lost_writes'>
    """

    LOST = "lost_writes"
    DUPLICATE = "duplicates"
    PHANTOM = "outputs_of_no_input"
    ABORTED_READ = "aborted_reads"
    DIRTY_READ = "dirty_reads"
    REORDERED = "reordered"
    WITHOUT_OFFSET = "outputs_without_offset"
    BEYOND_END = "group_offsets_beyond_end"
    OPEN = "open_transactions"
    UNPROCESSED = "not_yet_processed"


class Difference(str, enum.Enum):
    """Kinds of differences; the values are the keys of the JSON document.

    Examples:
        >>> Difference("missing")
        <Difference.MISSING: 'missing'>
    """

    MISSING = "missing"
    DUPLICATE = "duplicates"
    UNEXPECTED = "unexpected"
    VALUE = "different_values"
    OPEN = "open_transactions"


class Verdict(enum.IntEnum):
    """The verdict; its value is the exit status of ``spark-eos verify``.

    Examples:
        >>> int(Verdict.ANOMALIES)
        1
    """

    SOUND = 0
    ANOMALIES = 1
    UNJUDGED = 2


@dataclass(frozen=True)
class Example:
    """One case of an anomaly.

    Attributes:
        source: The input record; None if there is none, or if it is unknown.
        name: The header or key by which records are matched; None if matched by position.
        outputs: The output records concerned.
        detail: Further explanation; may be empty.

    Examples:
        >>> example = Example(source=Position("orders", 0, 17), detail="never written")
        >>> print(example.source, example.detail)
        orders:0:17 never written
    """

    source: Position | None = None
    name: bytes | None = None
    outputs: tuple[Position, ...] = ()
    detail: str = ""


@dataclass(frozen=True)
class RowExample:
    """An example of a difference, with shortened keys and values, and control characters escaped.

    Attributes:
        key: The key; None if it is null.
        value: The value that was found or is missing; None if it is null.
        expected: The value expected instead, for `Difference.VALUE`.
        source: Location of the expected row: ``file:row``, with rows counted from 0, or
            ``topic:partition:offset``. None if there is no such row.
        outputs: The output records concerned.
        detail: Further explanation; may be empty.

    Examples:
        >>> example = RowExample("bob", "3", source="part-0.parquet:7", detail="2 of 3 are there")
        >>> print(example.source, example.detail)
        part-0.parquet:7 2 of 3 are there
    """

    key: str | None = None
    value: str | None = None
    expected: str | None = None
    source: str | None = None
    outputs: tuple[Position, ...] = ()
    detail: str = ""


@dataclass(frozen=True)
class Finding(Generic[_Example]):
    """How often one kind of anomaly or difference was found.

    Attributes:
        count: Number of missing or surplus records, or of keys if compared by key. For kinds that
            concern partitions or transactions, the number of those.
        examples: Some cases, lowest positions first.
        parts: The count by cause, where known. For lost writes, the cause is the fate of the
            attempts to write them (``aborted``, ``open``, ``none``).

    Examples:
        >>> Finding(3, parts={"aborted": 2, "none": 1}).count
        3
    """

    count: int = 0
    examples: tuple[_Example, ...] = ()
    parts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupOffset:
    """The group's position in an input partition.

    Attributes:
        topic: The input topic.
        partition: The partition's number.
        committed: Committed offset, read after the outputs; None if there is none.
        end: Last stable offset, read after the committed one.

    Examples:
        >>> position = GroupOffset("orders", 0, committed=90, end=100)
        >>> position.end - position.committed
        10
    """

    topic: str
    partition: int
    committed: int | None
    end: int


@dataclass(frozen=True, kw_only=True)
class Result(Generic[_Kind, _Example]):
    """The common part of the results of `verify` and `compare`.

    Attributes:
        records_out: Number of output records visible at the isolation level.
        found: A finding for each kind that was checked; its count is 0 if all is well.
        unjudged: Number of records, rows or keys that can't be judged, by reason.
        notes: Further remarks for the user.
    """

    records_out: int
    found: Mapping[_Kind, Finding[_Example]]
    unjudged: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def count(self, kind: _Kind) -> int:
        """Return how often a kind was found; 0 if it was not checked."""
        finding = self.found.get(kind)
        return 0 if finding is None else finding.count

    @property
    def anomalies(self) -> dict[_Kind, Finding[_Example]]:
        """The findings that count as anomalies."""
        return {kind: finding for kind, finding in self.found.items() if finding.count}

    @property
    def verdict(self) -> Verdict:
        """ANOMALIES if there are any, else UNJUDGED if anything can't be judged, else SOUND."""
        if self.anomalies:
            return Verdict.ANOMALIES
        return Verdict.UNJUDGED if any(self.unjudged.values()) else Verdict.SOUND


@dataclass(frozen=True, kw_only=True)
class Findings(Result[Kind, Example]):
    """The result of `verify`: a `Result` with additional attributes.

    Attributes:
        records_in: Number of input records read.
        isolation_level: ``read_committed`` or ``read_uncommitted``.
        complete: Whether input that is not yet processed counts as an anomaly.
        input_gone: Number of outputs whose input was removed by retention. They count neither as
            sound nor as outputs without an input.
        group: The group's offsets, if a group was given.

    Examples:
        >>> findings = Findings(
        ...     records_in=100,
        ...     records_out=101,
        ...     isolation_level="read_committed",
        ...     found={Kind.LOST: Finding(), Kind.DUPLICATE: Finding(1)},
        ... )
        >>> findings.verdict
        <Verdict.ANOMALIES: 1>
        >>> findings.count(Kind.DUPLICATE), list(findings.anomalies)
        (1, [<Kind.DUPLICATE: 'duplicates'>])
    """

    records_in: int
    isolation_level: str
    complete: bool = False
    input_gone: int = 0
    group: tuple[GroupOffset, ...] = ()

    @property
    def anomalies(self) -> dict[Kind, Finding[Example]]:
        """The findings that count as anomalies; unprocessed input only if ``complete``."""
        anomalies = super().anomalies
        if not self.complete:
            anomalies.pop(Kind.UNPROCESSED, None)
        return anomalies

    @property
    def unchecked(self) -> tuple[Kind, ...]:
        """Kinds that were not checked because an argument was not given."""
        return tuple(kind for kind in Kind if kind not in self.found)


@dataclass(frozen=True, kw_only=True)
class Comparison(Result[Difference, RowExample]):
    """The result of `compare`: a `Result` with additional attributes.

    Attributes:
        rows_expected: Number of expected rows.
        by_key: Whether only the last value of each key was compared.

    Examples:
        >>> comparison = Comparison(
        ...     rows_expected=100,
        ...     records_out=101,
        ...     by_key=False,
        ...     found={Difference.MISSING: Finding(), Difference.DUPLICATE: Finding(1)},
        ... )
        >>> comparison.verdict
        <Verdict.ANOMALIES: 1>
        >>> comparison.count(Difference.DUPLICATE), list(comparison.anomalies)
        (1, [<Difference.DUPLICATE: 'duplicates'>])
    """

    rows_expected: int
    by_key: bool

    @property
    def unchecked(self) -> tuple[Difference, ...]:
        """Kinds that don't apply: duplicates when comparing by key, otherwise different values."""
        return tuple(kind for kind in Difference if kind not in self.found)
