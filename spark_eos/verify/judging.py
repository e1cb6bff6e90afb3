"""Derives the findings from the ledger and the offsets."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spark_eos.verify.cluster import Settled
from spark_eos.verify.findings import Example, Finding, Findings, GroupOffset, Kind
from spark_eos.verify.ledger import AHEAD, Ledger
from spark_eos.verify.markers import Fate
from spark_eos.verify.places import Places, Position

# Keys of the JSON document's ``unjudged``, so a public interface.
_OUTPUTS_REMOVED = "missing outputs, where retention has removed outputs"
_INPUTS_REMOVED = "outputs without an input, where retention has removed inputs"


@dataclass(frozen=True)
class Evidence:
    """What is known besides the ledger.

    Attributes:
        by_position: Whether the ledger's ids are positions.
        at_most_once_each: Whether inputs may have no output.
        expects_numbers: Whether inputs say how many outputs they have.
        isolation_level: Isolation level at which the outputs were read.
        group_id: The group, if one was given.
        committed: The group's offsets, read after the outputs, by input place.
        unstable: ``topic:partition`` of the group's partitions whose offset an open transaction
            was about to change until the timeout.
        input_lows: First offsets of the inputs, by place.
        input_ends: Last stable offsets of the inputs, by place.
        settled: How far the outputs are settled.
    """

    by_position: bool
    at_most_once_each: bool
    expects_numbers: bool
    isolation_level: str
    group_id: str | None
    committed: Mapping[int, int]
    unstable: tuple[str, ...]
    input_lows: Mapping[int, int]
    input_ends: Mapping[int, int]
    settled: Settled


def judge(
    evidence: Evidence, ledger: Ledger, places: Places, *, examples: int, complete: bool
) -> Findings:
    """Counts each kind of anomaly and picks examples.

    Args:
        evidence: What is known besides the ledger.
        ledger: The matched records.
        places: The partitions.
        examples: Maximum number of examples of each anomaly.
        complete: Whether unprocessed input counts as an anomaly.
    """
    return _Judge(evidence, ledger, places, examples).findings(complete=complete)


class _Judge:
    def __init__(self, evidence: Evidence, ledger: Ledger, places: Places, most: int) -> None:
        self._evidence = evidence
        self._ledger = ledger
        self._places = places
        self._most = most

    def findings(self, *, complete: bool) -> Findings:
        evidence, ledger = self._evidence, self._ledger
        found = {
            Kind.LOST: self._lost(),
            Kind.DUPLICATE: self._duplicates(),
            Kind.PHANTOM: self._phantoms(),
            Kind.ABORTED_READ: self._exposed(Fate.ABORTED),
            Kind.DIRTY_READ: self._exposed(Fate.OPEN),
            Kind.OPEN: self._open(),
        }
        if evidence.by_position:
            found[Kind.REORDERED] = self._reordered()
        if evidence.group_id is not None:
            found[Kind.WITHOUT_OFFSET] = self._without_offset()
            found[Kind.BEYOND_END] = self._beyond_end()
            found[Kind.UNPROCESSED] = self._unprocessed()
        phantoms_unsure = self._phantoms_unsure()
        unjudged = {
            _OUTPUTS_REMOVED: 0 if evidence.at_most_once_each else ledger.count("unsure"),
            _INPUTS_REMOVED: ledger.count("unmatched") if phantoms_unsure else 0,
        }
        return Findings(
            records_in=ledger.total("inputs"),
            records_out=ledger.total("outputs") + ledger.total("strays"),
            isolation_level=evidence.isolation_level,
            found={kind: found[kind] for kind in Kind if kind in found},
            complete=complete,
            input_gone=ledger.count("unmatched WHERE gone"),
            unjudged={reason: count for reason, count in unjudged.items() if count},
            notes=tuple(self._notes()),
            group=self._group(),
        )

    def _lost(self) -> Finding:
        rows = self._ledger.rows("id, source, fate, attempt", "lost", self._most)
        fates = {Fate.ABORTED: "aborted", Fate.OPEN: "in an open transaction"}
        return Finding(
            self._ledger.count("lost"),
            tuple(
                Example(
                    self._position(source),
                    self._name(id_),
                    self._positions(attempt),
                    fates.get(fate, "never written"),  # type: ignore[call-overload]
                )
                for id_, source, fate, attempt in rows
            ),
            self._ledger.lost_by_fate(),
        )

    def _duplicates(self) -> Finding:
        columns = "id, source, first, last, visible, expected"
        return Finding(
            self._ledger.count("duplicates"),
            tuple(
                Example(
                    self._position(source),
                    self._name(id_),
                    self._positions(first, last),
                    f"{visible!r} visible, {expected!r} expected",
                )
                for id_, source, first, last, visible, expected in self._ledger.rows(
                    columns, "duplicates", self._most
                )
            ),
        )

    def _phantoms_unsure(self) -> bool:
        """Whether outputs without input may be of removed input; with positions that is known."""
        return not self._evidence.by_position and any(self._evidence.input_lows.values())

    def _phantoms(self) -> Finding:
        strays = self._ledger.total("strays")
        examples = [
            Example(
                outputs=self._positions(position),
                detail="without the header or key" if value is None else f"names {value!r}",
            )
            for position, value in self._ledger.rows("position, value", "strays", self._most)
        ]
        if self._phantoms_unsure():
            return Finding(strays, tuple(examples))
        for id_, first, last in self._ledger.rows(
            "id, first, last", "unmatched WHERE NOT gone", self._most
        ):
            detail = "there is no such input"
            if isinstance(id_, int):
                detail = f"there is no input {self._places.position(id_)}"
            examples.append(Example(None, self._name(id_), self._positions(first, last), detail))
        return Finding(
            strays + self._ledger.count("unmatched WHERE NOT gone"), tuple(examples[: self._most])
        )

    def _exposed(self, fate: Fate) -> Finding:
        what = f"exposed WHERE fate = {int(fate)}"
        return Finding(
            self._ledger.total(what),
            tuple(
                Example(
                    self._position(id_) if self._evidence.by_position else None,
                    self._name(id_),
                    self._positions(position),
                    f"producer id {producer!r}",
                )
                for id_, position, producer in self._ledger.rows(
                    "id, position, producer", what, self._most
                )
            ),
        )

    def _reordered(self) -> Finding:
        return Finding(
            self._ledger.count("reordered"),
            tuple(
                Example(
                    self._position(id_),
                    None,
                    self._positions(moved),
                    f"after offset {back - 1}",  # type: ignore[operator]
                )
                for id_, moved, back in self._ledger.rows(
                    "id, moved, back", "reordered", self._most
                )
            ),
        )

    def _without_offset(self) -> Finding:
        return Finding(
            self._ledger.count("ahead"),
            tuple(
                Example(self._position(source), self._name(id_), self._positions(first))
                for id_, source, first in self._ledger.rows(
                    "id, source, first", "ahead", self._most
                )
            ),
        )

    def _beyond_end(self) -> Finding:
        ends = self._evidence.input_ends
        found = [
            Example(
                Position(*self._places.partition(place), offset),
                detail=f"the input ends at {ends[place]}",
            )
            for place, offset in sorted(self._evidence.committed.items())
            if offset > ends[place]
        ]
        return Finding(len(found), tuple(found[: self._most]))

    def _open(self) -> Finding:
        evidence = self._evidence
        found = [
            Example(outputs=outputs, detail=detail)
            for outputs, detail in evidence.settled.still_open(
                self._places, evidence.group_id, evidence.unstable
            )
        ]
        return Finding(len(found), tuple(found[: self._most]))

    def _unprocessed(self) -> Finding:
        what = f"inputs WHERE standing = {AHEAD} AND expected > 0"
        return Finding(
            self._ledger.total(what),
            tuple(
                Example(self._position(position), self._name(id_))
                for id_, position in self._ledger.rows("id, position", what, self._most)
            ),
        )

    def _group(self) -> tuple[GroupOffset, ...]:
        if self._evidence.group_id is None:
            return ()
        return tuple(
            GroupOffset(
                *self._places.partition(place),
                self._evidence.committed.get(place),
                self._evidence.input_ends[place],
            )
            for place in self._places.inputs
        )

    def _notes(self) -> Iterator[str]:
        if self._evidence.group_id is not None:
            removed = sum(
                max(0, low - self._evidence.committed.get(place, 0))
                for place, low in self._evidence.input_lows.items()
            )
            if removed:
                yield f"retention removed {removed:,} input offsets before they were processed"
        yield from self._notes_on_numbers()

    def _notes_on_numbers(self) -> Iterator[str]:
        """What a query that filters or explodes has done, and how to say that it may."""
        ledger, evidence = self._ledger, self._evidence
        if evidence.at_most_once_each:
            missing = ledger.total("missing WHERE NOT visible") - ledger.total("lost")
            if missing:
                yield (
                    f"{missing:,} processed inputs have no output, which --at-most-once-each "
                    "allows: whether the query should have written them is not judged"
                )
        elif (never := ledger.total("lost WHERE NOT fate AND NOT visible")) and (
            not evidence.expects_numbers
        ):
            yield (
                f"{never:,} processed inputs were never written, in no transaction. If the query "
                "filters, they may have been left out on purpose: --at-most-once-each lets inputs "
                "be missing, but none be written twice; --expect-header says how many outputs each "
                "has"
            )
        if not evidence.expects_numbers and ledger.count("duplicates"):
            yield (
                "inputs have several outputs. If the query makes more than one of a record, let a "
                "header of the input say how many (--expect-header)"
            )

    def _name(self, id_: object) -> bytes | None:
        return id_ if isinstance(id_, bytes) else None

    def _position(self, number: object) -> Position | None:
        return self._places.position(number) if isinstance(number, int) else None

    def _positions(self, *numbers: object) -> tuple[Position, ...]:
        # One record may be both the first and the last.
        distinct = dict.fromkeys(number for number in numbers if isinstance(number, int))
        return tuple(self._places.position(number) for number in distinct)
