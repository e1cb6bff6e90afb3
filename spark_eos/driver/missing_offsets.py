"""Where a source partition without a committed offset begins: is it new, or was its offset lost?

Pure. A partition is new only if nothing says that the group has ever had an offset for it. A lost
offset is restored if the checkpoint proves what it was, and refused otherwise.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_eos.batch.plan import BatchRange, Positions
from spark_eos.batch.source_places import SourcePlaces
from spark_eos.driver.checkpoint_note import Note
from spark_eos.errors import OffsetsLostError
from spark_eos.kafka.offset_metadata import KnownPartitions

_BEHIND: Final = "with asynchronous_progress more may be written than the checkpoint says"


@dataclass(frozen=True)
class Evidence:
    """What tells a lost offset from one that never existed.

    Attributes:
        group_id: The consumer group.
        known: Partitions the group has had offsets for, by the metadata of its remaining offsets.
        topic_ids: Ids of the source topics.
        note: Which group last wrote from the checkpoint, and its topics.
        begun_now: Whether this run is the first to write the batch, so that none of its rows can
            have been written yet.
        places: What the group's offsets stand for.
    """

    group_id: str
    known: KnownPartitions
    topic_ids: Mapping[str, uuid.UUID | None]
    note: Note
    begun_now: bool
    places: SourcePlaces = field(default_factory=SourcePlaces)


def initial_offsets(
    batch: BatchRange, committed: Positions, first_offsets: Positions, evidence: Evidence
) -> Positions:
    """The offsets to commit for the batch's partitions that have none.

    Args:
        batch: The batch's range.
        committed: Next offset by (topic, partition).
        first_offsets: The first offset in the log, for partitions that are new in the batch.
        evidence: What else is known.

    Raises:
        OffsetsLostError: An offset was lost, and nothing proves what it was.
    """
    found: Positions = {}
    # An old checkpoint that was put back proves nothing: the group has gone further since.
    unwritten = all(committed[p] <= start for p, start in batch.starts.items() if p in committed)
    current = all(committed[p] <= end for p, end in batch.ends.items() if p in committed)
    past = not current or (evidence.begun_now and not unwritten)
    for place in sorted(batch.ends.keys() - committed.keys()):
        start = batch.starts.get(place)
        if start is None or batch.batch_id == 0:
            because = _known_before(place, evidence, new=start is None)
        else:
            because = _unproven(place, batch, evidence, past=past)
        if because:
            raise _lost(place, batch, evidence, because)
        # Earlier batches are finished, and nothing of this one can be written yet.
        found[place] = first_offsets.get(place, 0) if start is None else start
    return found


def _known_before(place: tuple[str, int], evidence: Evidence, *, new: bool) -> str:
    """Why a partition that the checkpoint has no offsets of is not a new one; "" if it is."""
    (topic, partition), note = place, evidence.note
    topic_id = evidence.topic_ids.get(topic)
    if evidence.known.knows(topic, partition, topic_id):
        return "it had one before"
    if not new and note.group_id is not None:
        return "batch 0 was begun before"
    if note.group_id == evidence.group_id and note.names(place, topic_id):
        return "the query has read it before"
    if note.behind and not evidence.known.partitions:
        return _BEHIND
    if note.group_id != evidence.group_id and evidence.known.tells_nothing_of(topic):
        # Perhaps an operator set one that was lost, and this one is lost as well.
        return "offsets of its topic were set by another client"
    return ""


def _unproven(place: tuple[str, int], batch: BatchRange, evidence: Evidence, *, past: bool) -> str:
    """Why the checkpoint does not prove what a lost offset was; "" if it does."""
    start, note = batch.starts[place], evidence.note
    if note.group_id != evidence.group_id or place[0] not in note.topic_ids:
        return f"batch {batch.batch_id} starts at {start}, or the checkpoint is another group's"
    if note.behind:
        return _BEHIND
    if past:
        return "the group's other offsets lie past the checkpoint's"
    if not evidence.begun_now and batch.ends[place] != start:
        return f"batch {batch.batch_id}, from {start} to {batch.ends[place] - 1}, was begun"
    return ""


def _lost(
    place: tuple[str, int], batch: BatchRange, evidence: Evidence, because: str
) -> OffsetsLostError:
    name = evidence.places.name(place)
    start = batch.starts.get(place)
    ours = evidence.note.group_id == evidence.group_id and batch.batch_id > 0 and start is not None
    below = f" By this checkpoint's batches, everything below {start} is written." if ours else ""
    return OffsetsLostError(
        f"group {evidence.group_id!r} has no committed offset for {name}, although {because}: its "
        "offset has expired (offsets.retention.minutes) or was deleted. Records may already be "
        f"written, so nothing is written now.{below} Find out up to where it was written "
        "(spark-eos verify) and set the group's offset there while the query is stopped "
        f"({evidence.places.how_to_set(evidence.group_id, {place: 'N'})}), or start over with "
        "another group_id and another checkpoint_location"
    )
