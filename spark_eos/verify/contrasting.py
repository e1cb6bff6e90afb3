"""Derives a comparison's findings from its tally, and reads its examples again."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from spark_eos.verify.cluster import Settled
from spark_eos.verify.comparison import Comparison, Difference, Differences, RowExample
from spark_eos.verify.expected import Rows, TopicRows, shown
from spark_eos.verify.places import Places, Position
from spark_eos.verify.tally import EXPECTED, VISIBLE, Tally

# Keys of the JSON document's ``unjudged``, so a public interface.
_OUTPUTS_REMOVED: Final = "missing rows, where retention has removed outputs"
_EXPECTED_REMOVED: Final = "surplus outputs, where retention has removed what was expected"
_ELSEWHERE: Final = "keys in several partitions, of which no order says which value is the last"

_Case = tuple[int | bytes | None, ...]


@dataclass(frozen=True)
class Gathered:
    """What is known besides the tally.

    Attributes:
        expected: The expected rows.
        visible: The output records.
        settled: How far the topics are settled.
        unstable: ``topic:partition`` whose offset of the group is about to change.
        lows: First existing offsets of all topics, by place, from after they were read.
        group_id: The group, if one was given.
    """

    expected: Rows
    visible: TopicRows
    settled: Settled
    unstable: tuple[str, ...]
    lows: Mapping[int, int]
    group_id: str | None


def contrast(
    gathered: Gathered, tally: Tally, places: Places, *, by_key: bool, examples: int
) -> Comparison:
    """Counts each kind of difference and reads examples again, since the tally has only hashes.

    Args:
        gathered: What is known besides the tally.
        tally: The compared rows.
        places: The partitions.
        by_key: Whether keys were compared, or rows.
        examples: Maximum number of examples of each difference.
    """
    return _Contrast(gathered, tally, places, examples).comparison(by_key=by_key)


class _Contrast:
    def __init__(self, gathered: Gathered, tally: Tally, places: Places, most: int) -> None:
        self._gathered = gathered
        self._tally = tally
        self._places = places
        self._most = most
        # Key and value of examples, by number.
        self._expected: dict[int, tuple[str | None, str | None]] = {}
        self._visible: dict[int, tuple[str | None, str | None]] = {}

    def comparison(self, *, by_key: bool) -> Comparison:
        tally, lows = self._tally, self._gathered.lows
        outputs_removed = any(lows[place] for place in self._places.outputs)
        expected_removed = any(lows[place] for place in self._places.inputs)
        views = {Difference.MISSING: "missing", Difference.UNEXPECTED: "unexpected"}
        more = {Difference.VALUE: "different"} if by_key else {Difference.DUPLICATE: "duplicates"}
        views |= more
        counts = {kind: tally.count(view) for kind, view in views.items()}
        unjudged = dict.fromkeys((_OUTPUTS_REMOVED, _EXPECTED_REMOVED, _ELSEWHERE), 0)
        if outputs_removed:
            unjudged[_OUTPUTS_REMOVED] = counts.pop(Difference.MISSING)
        if expected_removed:
            for kind in (Difference.DUPLICATE, Difference.UNEXPECTED):
                unjudged[_EXPECTED_REMOVED] += counts.pop(kind, 0)
        if by_key:
            unjudged[_ELSEWHERE] = tally.count("unsure")
        columns = "source, first, last" + ("" if by_key else ", visible, expected")
        cases = {kind: list(tally.rows(columns, views[kind], self._most)) for kind in counts}
        keyless = [number for (number,) in tally.rows("number", "keyless", self._most)]
        self._read(cases.values(), keyless)
        found = dict.fromkeys(views, Differences())
        for kind, count in counts.items():
            shown_ones = tuple(self._example(kind, *case) for case in cases[kind])
            found[kind] = Differences(count, shown_ones)
        found[Difference.UNEXPECTED] = self._with_keyless(found[Difference.UNEXPECTED], keyless)
        found[Difference.OPEN] = self._open()
        return Comparison(
            rows_expected=tally.total(f"rows WHERE side = {EXPECTED}"),
            records_out=tally.total(f"rows WHERE side = {VISIBLE}") + tally.total("keyless"),
            by_key=by_key,
            found={kind: found[kind] for kind in Difference if kind in found},
            unjudged={reason: count for reason, count in unjudged.items() if count},
            notes=tuple(self._notes()),
        )

    def _read(self, cases: Iterable[list[_Case]], keyless: list[int | bytes | None]) -> None:
        """Reads examples again; those that are gone since have neither key nor value."""
        every = [case for some in cases for case in some]
        wanted = {case[0] for case in every if isinstance(case[0], int)}
        seen = {case[1] for case in every if isinstance(case[1], int)}
        seen |= {number for number in keyless if isinstance(number, int)}
        self._expected = {
            row.number: (shown(row.key), shown(row.value))
            for row in self._gathered.expected.pick(wanted)
        }
        self._visible = {
            row.number: (shown(row.key), shown(row.value))
            for row in self._gathered.visible.pick(seen)
        }

    def _example(self, kind: Difference, *case: int | bytes | None) -> RowExample:
        source, first, last, *counts = (one if isinstance(one, int) else -1 for one in case)
        key, wanted = self._expected.get(source, (None, None))
        name = self._gathered.expected.name(source) if source >= 0 else None
        outputs = self._positions(first, last)
        detail = f"{counts[0]} visible, {counts[1]} expected" if counts else ""
        if kind is Difference.MISSING:
            # Compared by key, what is visible of a missing key are its deletions.
            detail = "deleted" if outputs and not counts else detail
            return RowExample(key, wanted, source=name, outputs=outputs, detail=detail)
        key, value = self._visible.get(first, (key, None))
        expected = wanted if kind is Difference.VALUE else None
        return RowExample(key, value, expected, name, outputs, detail)

    def _with_keyless(
        self, unexpected: Differences, keyless: list[int | bytes | None]
    ) -> Differences:
        examples = [
            RowExample(*self._visible.get(number, (None, None)), None, None, at, "without a key")
            for number in keyless
            if isinstance(number, int) and (at := self._positions(number, number))
        ]
        return Differences(
            unexpected.count + self._tally.total("keyless"),
            (*unexpected.examples, *examples)[: self._most],
        )

    def _open(self) -> Differences:
        gathered = self._gathered
        found = [
            RowExample(outputs=outputs, detail=detail)
            for outputs, detail in gathered.settled.still_open(
                self._places, gathered.group_id, gathered.unstable
            )
        ]
        return Differences(len(found), tuple(found[: self._most]))

    def _notes(self) -> Iterator[str]:
        if not self._gathered.expected.has_key:
            yield "keys were not compared, as the expectation has no column 'key'"
        if self._gathered.settled.short:
            yield "what is behind an open transaction can't be seen: differences may be due to that"

    def _positions(self, first: int, last: int) -> tuple[Position, ...]:
        # One record may be both the first and the last.
        distinct = dict.fromkeys(number for number in (first, last) if number >= 0)
        return tuple(self._places.position(number) for number in distinct)
