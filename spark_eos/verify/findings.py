"""What a verification found: plain values, and the verdict on them."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_eos.verify.places import Position


class Kind(str, enum.Enum):
    """What can be wrong; the values are the keys of the JSON document."""

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


class Verdict(enum.IntEnum):
    """The verdict, as the exit status of ``spark-eos verify``."""

    SOUND = 0
    ANOMALIES = 1
    UNJUDGED = 2


@dataclass(frozen=True)
class Example:
    """One case of an anomaly.

    Attributes:
        source: The input record; None if there is none, or if it is not known.
        name: The value by which records are matched, where that is not their position.
        outputs: Output records that are concerned.
        detail: More, in words; may be empty.
    """

    source: Position | None = None
    name: bytes | None = None
    outputs: tuple[Position, ...] = ()
    detail: str = ""


@dataclass(frozen=True)
class Finding:
    """How often one kind of anomaly was found.

    Attributes:
        count: Missing or surplus records; partitions and transactions for those kinds.
        examples: Some of them, the lowest positions first.
        parts: The count by causes, where they are known: lost writes by what became of their
            attempts (``aborted``, ``open``, ``none``).
    """

    count: int = 0
    examples: tuple[Example, ...] = ()
    parts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupOffset:
    """Where the group stands in an input partition.

    Attributes:
        committed: Offset committed after the outputs were read; None: none.
        end: The last stable offset, read after that.
    """

    topic: str
    partition: int
    committed: int | None
    end: int


@dataclass(frozen=True)
class Findings:
    """What `verify` found.

    Attributes:
        records_in: Input records read.
        records_out: Output records that a reader of the isolation level saw.
        isolation_level: ``read_committed`` or ``read_uncommitted``.
        found: A finding for each kind that was checked; of count 0 if it is sound.
        complete: Whether input that is not yet processed is an anomaly.
        input_gone: Outputs of input that retention has removed: neither sound nor phantom.
        unjudged: Numbers of records that can't be judged, by the reason.
        notes: What else a reader of the findings should know.
        group: The group's offsets, if there is a group.
    """

    records_in: int
    records_out: int
    isolation_level: str
    found: Mapping[Kind, Finding]
    complete: bool = False
    input_gone: int = 0
    unjudged: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    group: tuple[GroupOffset, ...] = ()

    def count(self, kind: Kind) -> int:
        """How often a kind was found; 0 if it was not checked."""
        found = self.found.get(kind)
        return 0 if found is None else found.count

    @property
    def anomalies(self) -> dict[Kind, Finding]:
        """The findings that are anomalies."""
        return {
            kind: finding
            for kind, finding in self.found.items()
            if finding.count and (kind is not Kind.UNPROCESSED or self.complete)
        }

    @property
    def unchecked(self) -> tuple[Kind, ...]:
        """Kinds that could not be checked with what was given."""
        return tuple(kind for kind in Kind if kind not in self.found)

    @property
    def verdict(self) -> Verdict:
        """Anomalies decide; else whatever can't be judged does."""
        if self.anomalies:
            return Verdict.ANOMALIES
        return Verdict.UNJUDGED if any(self.unjudged.values()) else Verdict.SOUND
