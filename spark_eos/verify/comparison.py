"""The result of a comparison with an expectation: plain values and the verdict on them."""

import enum
from dataclasses import dataclass

from spark_eos.verify.findings import Position, Result


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


@dataclass(frozen=True, kw_only=True)
class Comparison(Result[Difference, RowExample]):
    """The result of `compare`: a `Result` with these attributes, too.

    Attributes:
        rows_expected: Number of rows of the expectation.
        by_key: Whether only the last value of each key was compared.

    Examples:
        >>> from spark_eos.verify import Finding
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
        """Kinds that do not apply: with keys duplicates, without keys different values."""
        return tuple(kind for kind in Difference if kind not in self.found)
