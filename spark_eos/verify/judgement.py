"""Derives the findings from the records in SQL and the group's offsets."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kafka import TopicPartition

from spark_eos.verify.control_records import Fate
from spark_eos.verify.findings import Example, Finding, Findings, GroupOffset, Kind
from spark_eos.verify.input_offsets import InputOffsets
from spark_eos.verify.matching import Matching, Outputs
from spark_eos.verify.open_transactions import Settled
from spark_eos.verify.partitions import Partitions, position_in
from spark_eos.verify.questions import Records

# Keys of ``unjudged`` in the JSON document, and therefore part of the public interface.
_OUTPUTS_REMOVED: Final = "missing outputs, where retention has removed outputs"
_INPUTS_REMOVED: Final = "outputs without an input, where retention has removed inputs"
_INPUTS_REPEATED: Final = "outputs that may come from inputs that retention has removed"
_MARKERS_REMOVED: Final = (
    "outputs that retention has removed before the ends of their transactions were read"
)
_OVERTAKEN: Final = "input offsets that retention has removed before the group processed them"
_SEVERAL: Final = "dead letters of several groups, of which --group-id says the query's own"
_FATES: Final = {0: "none", int(Fate.ABORTED): "aborted", int(Fate.OPEN): "open"}


@dataclass
class Judgement:
    """The state of a verification, which is judged once all records are matched."""

    matching: Matching
    inputs: Partitions
    outputs: Partitions
    records: Records
    isolation_level: str
    group_id: str | None
    # Set by the steps of the verification.
    offsets: InputOffsets = field(init=False)
    input_lows: Mapping[TopicPartition, int] = field(init=False)
    input_ends: Mapping[TopicPartition, int] = field(init=False)
    settled: Settled = field(init=False)
    rows: Outputs = field(init=False)

    def findings(self, notes: Iterable[str], *, examples: int, complete: bool) -> Findings:
        """Return count and examples of each kind of anomaly; append further notes to ``notes``."""
        records = self.records
        by_sql = [Kind.LOST, Kind.DUPLICATE, Kind.PHANTOM, Kind.ABORTED_READ, Kind.DIRTY_READ]
        if self.matching.by_position:
            by_sql.append(Kind.REORDERED)
        if self.group_id is not None:
            by_sql += [Kind.WITHOUT_OFFSET, Kind.UNPROCESSED]
        findings = {kind: self._asked(kind, examples) for kind in by_sql}
        listed = {
            Kind.OPEN: [
                Example(outputs=outputs, detail=detail)
                for outputs, detail in self.settled.held_up(self.group_id, self.offsets.unstable)
            ]
        }
        if self.group_id is not None:
            listed[Kind.BEYOND_END] = [*self._beyond_end()]
        findings |= {
            kind: Finding(len(cases), tuple(cases[:examples])) for kind, cases in listed.items()
        }
        return Findings(
            records_in=records.number("SELECT COUNT(*) FROM inputs"),
            records_out=records.number(
                "SELECT (SELECT COUNT(*) FROM outputs) + (SELECT COUNT(*) FROM without_source)"
            ),
            isolation_level=self.isolation_level,
            found={kind: findings[kind] for kind in Kind if kind in findings},
            complete=complete,
            input_gone=records.number("SELECT SUM(visible) FROM unmatched WHERE gone"),
            unjudged={reason: count for reason, count in self._unjudged().items() if count},
            notes=(*notes, *self._notes()),
            group=self._group(),
        )

    def _asked(self, kind: Kind, most: int) -> Finding[Example]:
        """Return the count and examples from the kind's view."""
        view = kind.value
        rows = self.records.ask(f"SELECT id, source, first, last, detail FROM {view} LIMIT ?", most)
        parts: dict[str, int] = {}
        if kind is Kind.LOST:
            fates = dict(self.records.ask(f"SELECT fate, SUM(number) FROM {view} GROUP BY fate"))
            parts = {name: int(fates[fate]) for fate, name in _FATES.items() if fate in fates}
        count = self.records.number(f"SELECT SUM(number) FROM {view}")
        return Finding(count, tuple(self._example(*row) for row in rows), parts)

    def _example(self, id_: Any, source: int | None, *outputs_and_detail: Any) -> Example:
        *outputs, detail = outputs_and_detail
        return Example(
            None if source is None else self.inputs.position(source),
            id_ if isinstance(id_, bytes) else None,
            self.outputs.positions(*outputs),
            detail,
        )

    def _beyond_end(self) -> Iterator[Example]:
        for partition, end in self.input_ends.items():
            offset = self.offsets.committed.get(partition, 0)
            if offset > end:
                yield Example(position_in(partition, offset), detail=f"the input ends at {end}")

    def _unjudged(self) -> dict[str, int]:
        number, matching = self.records.number, self.matching
        # A position shows whether retention removed the input, but not how many outputs to expect.
        known = matching.by_position and matching.expect_header is None
        removed = not known and any(self.input_lows.values())
        missing = "SELECT SUM(number) FROM missing WHERE unsure"
        if matching.at_most_once_each:
            missing += " AND NOT visible AND id IN (SELECT id FROM attempts)"
        unmatched = "SELECT SUM(visible) FROM unmatched WHERE gone OR typeof(id) <> 'integer'"
        # Records with the same key are common: an output of a removed input may hide a lost one.
        repeated = "SELECT SUM(visible - done) FROM odd WHERE sources AND visible > done"
        if matching.key:
            repeated = (
                "SELECT (SELECT COUNT(*) FROM outputs) - COALESCE(SUM(visible), 0) FROM unmatched"
            )
        dead_letters = self.rows.letters
        several = self.group_id is None and len(dead_letters) > 1
        return {
            **self.settled.unjudged(),
            _SEVERAL: sum(dead_letters.values()) if several else 0,
            _OVERTAKEN: sum(
                max(0, self.input_lows[partition] - offset)
                for partition, offset in self.offsets.committed.items()
            ),
            _OUTPUTS_REMOVED: number(missing),
            _INPUTS_REMOVED: number(unmatched) if removed else 0,
            _INPUTS_REPEATED: number(repeated) if removed and not matching.by_position else 0,
            _MARKERS_REMOVED: number(f"SELECT COUNT(*) FROM exposed WHERE fate = {Fate.UNKNOWN:d}"),
        }

    def _group(self) -> tuple[GroupOffset, ...]:
        if self.group_id is None:
            return ()
        committed, ends = self.offsets.committed, self.input_ends
        return tuple(
            GroupOffset(
                partition.topic, partition.partition, committed.get(partition), ends[partition]
            )
            for partition in self.inputs
        )

    def _notes(self) -> Iterator[str]:
        yield from self.settled.notes()
        if self.group_id is not None:
            committed = self.offsets.committed
            removed = sum(
                max(0, low - committed.get(partition, 0))
                for partition, low in self.input_lows.items()
            )
            if removed:
                yield f"retention removed {removed:,} input offsets before they were processed"
        if others := self.rows.others:
            group_id = self.group_id
            what = (
                "dead letters of topics that are not inputs"
                if group_id is None
                else f"records in dead-letter topics that are not from group {group_id!r}"
            )
            yield f"{what} belong to other queries and are left out: {others:,}"
        yield from self._notes_on_numbers()

    def _notes_on_numbers(self) -> Iterator[str]:
        """Yield notes on inputs with no output or several, and on options that allow this."""
        ask, matching = self.records.number, self.matching
        if matching.at_most_once_each:
            missing = ask("SELECT COUNT(*) FROM missing WHERE NOT visible")
            missing -= ask("SELECT COUNT(*) FROM lost_writes")
            if missing:
                yield (
                    f"{missing:,} processed inputs have no output, which --at-most-once-each "
                    "allows: whether the query should have written them is not judged"
                )
        elif matching.expect_header is None and (
            never := ask("SELECT COUNT(*) FROM lost_writes WHERE NOT fate AND NOT visible")
        ):
            yield (
                f"{never:,} processed inputs were never written in any transaction. If the query "
                "has dead letters, name their topic (--dead-letter-topic). If it filters, it may "
                "have left them out on purpose: --at-most-once-each allows inputs without output, "
                "but not duplicates; --expect-header names a header with each input's number of "
                "outputs"
            )
        if matching.expect_header is None and ask("SELECT COUNT(*) FROM duplicates"):
            yield (
                "some inputs have several outputs. If the query makes several from a record, "
                "put their number into a header of the input (--expect-header)"
            )
