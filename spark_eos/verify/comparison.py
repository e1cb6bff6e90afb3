"""The result of a comparison with an expectation: plain values and the verdict on them."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_eos.verify.findings import Position, Verdict


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


@dataclass(frozen=True)
class RowExample:
    """One case of a difference; keys and values are shortened, and control characters escaped.

    Attributes:
        key: The key; None if it is null.
        value: The value that is there, or that is missing; None if it is null.
        expected: The value that is expected in its place, for `Difference.VALUE`.
        source: Where the expected row is: ``file:row``, counted from 0, or
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
class Differences:
    """How often one kind of difference was found.

    Attributes:
        count: Number of missing or surplus rows; of keys if compared by key; of partitions and
            transactions for `Difference.OPEN`.
        examples: Some cases, lowest positions first.

    Examples:
        >>> Differences(2).count
        2
    """

    count: int = 0
    examples: tuple[RowExample, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        rows_expected: Number of rows of the expectation.
        records_out: Number of output records that a read_committed consumer sees.
        by_key: Whether only the last value of each key was compared.
        found: The differences of each kind that was checked; the count is 0 if all is well.
        unjudged: Number of rows or keys that can't be judged, by reason.
        notes: Further remarks for the reader.

    Examples:
        >>> comparison = Comparison(
        ...     rows_expected=100,
        ...     records_out=101,
        ...     by_key=False,
        ...     found={Difference.MISSING: Differences(), Difference.DUPLICATE: Differences(1)},
        ... )
        >>> comparison.verdict
        <Verdict.ANOMALIES: 1>
        >>> comparison.count(Difference.DUPLICATE), list(comparison.anomalies)
        (1, [<Difference.DUPLICATE: 'duplicates'>])
    """

    rows_expected: int
    records_out: int
    by_key: bool
    found: Mapping[Difference, Differences]
    unjudged: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def count(self, kind: Difference) -> int:
        """Returns how often a kind was found; 0 if it was not checked."""
        found = self.found.get(kind)
        return 0 if found is None else found.count

    @property
    def anomalies(self) -> dict[Difference, Differences]:
        """The kinds that were found."""
        return {kind: found for kind, found in self.found.items() if found.count}

    @property
    def unchecked(self) -> tuple[Difference, ...]:
        """Kinds that do not apply: with keys duplicates, without keys different values."""
        return tuple(kind for kind in Difference if kind not in self.found)

    @property
    def verdict(self) -> Verdict:
        """ANOMALIES if there are any, else UNJUDGED if anything can't be judged, else SOUND."""
        if self.anomalies:
            return Verdict.ANOMALIES
        return Verdict.UNJUDGED if any(self.unjudged.values()) else Verdict.SOUND
