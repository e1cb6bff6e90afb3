"""Invariants that must hold under any faults. Only a violation counts as detecting a breakage.

A query that gets stuck, or a harness that fails, violates no invariant and is reported separately.
"""

import enum
from dataclasses import dataclass

from spark_eos.verify import Findings
from spark_eos.verify import Kind as FindingKind


class Category(enum.Enum):
    INVARIANT = "invariant"
    # The records are correct, but the user does not get the promised report.
    PROMISE = "promise"


class Rule(enum.Enum):
    """A rule; the value says what must hold."""

    NOTHING_LOST = "a record whose offset is committed has its output"
    NOTHING_DOUBLED = "no output is visible twice"
    IN_ORDER = "within a target partition the output of a source partition is in its order"
    COMMITTED_READS = "a read_committed reader sees no record of an aborted or open transaction"
    OUTPUT_WITH_OFFSET = "visible output has its record's offset committed, and such a record"
    OFFSETS_IN_RANGE = "no committed offset is past the end of its partition"
    OFFSETS_FORWARD = "a committed offset never goes back"
    OFFSETS_LAST = "offsets enter a transaction when all its records are acknowledged, and end it"
    NOTHING_LEFT_OPEN = "when a query has recovered, no transaction of a dead run is open"
    ONE_RUN = "of two runs of a group one alone goes on writing"
    STOPS_WITHOUT_OFFSETS = "a query whose group's offsets are gone restores them or writes nothing"
    AS_COMPUTED = "a staged query's output is what a plain batch query computes"
    ONE_COPY = "all rows of a staged batch come from one copy of it"
    COPY_KEPT = "the copy that the staged commit names is there until the next one counts"
    COPY_WHOLE = "no batch is finished without all files of its copy"
    BATCH_ENDED = "a staged query has all progress partitions at its last batch's end"
    COPIES_SWEPT = "of the copies only those of the last batch are left"
    STATE_KEPT = "a query finds the state that its batches have left"
    STOPS_WITHOUT_STATE = "a staged query without its own latest checkpoint writes nothing"
    LOCKSTEP = "the brokers' own logs tell the same transactions, markers, offsets and records"
    ALLOWED = "requests and answers are steps that the model of the protocol allows"
    VALUES_KEPT = "an output has its record's values, and only a broken record is a dead letter"
    COUNTED = "no more dead letters are reported than there are"
    ROW_NAMED = "an error about a record names the source record it was made of"

    @property
    def category(self) -> Category:
        """True if records, offsets or transactions are wrong, not only reports about them."""
        return Category.PROMISE if self is Rule.ROW_NAMED else Category.INVARIANT


@dataclass(frozen=True)
class Violation:
    rule: Rule
    detail: str  # how it was observed

    def __str__(self) -> str:
        return f"{self.rule.category.value} violated: {self.rule.value}: {self.detail}"


class ViolationError(Exception):
    """A rule was violated while faults were inflicted."""

    def __init__(self, rule: Rule, detail: str) -> None:
        self.violation = Violation(rule, detail)
        super().__init__(str(self.violation))


_RULES = {
    FindingKind.LOST: Rule.NOTHING_LOST,
    FindingKind.DUPLICATE: Rule.NOTHING_DOUBLED,
    FindingKind.REORDERED: Rule.IN_ORDER,
    FindingKind.ABORTED_READ: Rule.COMMITTED_READS,
    FindingKind.DIRTY_READ: Rule.COMMITTED_READS,
    FindingKind.PHANTOM: Rule.OUTPUT_WITH_OFFSET,
    FindingKind.WITHOUT_OFFSET: Rule.OUTPUT_WITH_OFFSET,
    FindingKind.BEYOND_END: Rule.OFFSETS_IN_RANGE,
    FindingKind.OPEN: Rule.NOTHING_LEFT_OPEN,
}


def violations(found: Findings, *, drained: bool) -> list[Violation]:
    """The rules whose violation the verifier has found."""
    return [
        Violation(_RULES[kind], f"{finding.count:,} {kind.value}, such as {finding.examples[:1]}")
        for kind, finding in found.anomalies.items()
        if kind in _RULES and (drained or kind is not FindingKind.OPEN)
    ]
