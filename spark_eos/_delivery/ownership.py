"""Decides whether another query, which may write elsewhere, owns a group's offsets; no I/O."""

# Only the texts in the offsets' metadata name the owner. Texts written by earlier versions name no
# owner, so those offsets are not refused.

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from spark_eos._checkpoint.marker import DIRECT, MIRRORED, STAGED, Marker
from spark_eos._client.printable import listed
from spark_eos._kafka.offset_metadata import Committed, KnownPartitions
from spark_eos._kafka.progress_topic import COMMIT_PARTITION, first_position
from spark_eos._kafka.stored_text import Owner
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.plan import Partitions
from spark_eos._worker.sources import Sources
from spark_eos.errors import CheckpointError, ConfigurationError


def owners_of(known: KnownPartitions, partitions: Partitions) -> set[Owner]:
    """Return the owners of the offsets in the topics of these partitions."""
    topics = {topic for topic, _ in partitions}
    return {owner for topic in topics for owner in known.owners.get(topic, ())}


def check_owner(
    group_id: str,
    own: Owner,
    known: KnownPartitions,
    sources: Sources,
    read: Partitions,
    moved_from: str | None,
    *,
    begun_with: str | None,
) -> None:
    """Refuse offsets of another query, unless this query may continue from them."""
    every = {owner for owners in known.owners.values() for owner in owners}
    moved = (moved_from or "").replace(",", " ").split()
    admitted = {own.query, *(Owner.of(query, None).query for query in moved)}
    if all(owner.query in admitted for owner in every):
        return
    strangers = [owner for owner in owners_of(known, read) if owner.query not in admitted]
    if elsewhere := [owner for owner in strangers if owner.target != own.target]:
        first = min(owner.written_to for owner in elsewhere)
        what = (
            f"writes to {first}. Records that its offsets have passed would never be written to "
            f"{own.written_to}"
        )
        raise _group_owned_error(group_id, elsewhere, what)
    if begun_with == group_id:
        return
    if strangers and begun_with is not None:
        what = (
            f"has its own checkpoint, and this query's checkpoint is of group {begun_with!r}. "
            "Records that its offsets have passed would never be written by this query"
        )
        raise _group_owned_error(group_id, strangers, what)
    before = {*known.partitions, *known.set_by_others}
    if before.isdisjoint(read) and all(owner.query != own.query for owner in every):
        named = [_topics(map(sources.source, each)) for each in (before, read)]
        what = f"reads {named[0]}, not {named[1]}. Each query would stop the other"
        raise _group_owned_error(
            group_id, [owner for owner in every if owner.query not in admitted], what
        )


def ownership_change(own: Owner, owners: Collection[Owner], *, new: bool) -> str:
    """Return a notice if the target or owner differs, else ""; ``new`` means a new checkpoint."""
    mine = {owner.written_to for owner in owners if owner.query == own.query}
    if mine:
        changed = f"the topic is {own.written_to} now, and was {min(mine)}"
        return "" if own.written_to in mine else changed
    if not new:
        return ""
    whose = {f"query {owner.query}, which wrote to {owner.written_to}" for owner in owners}
    of = min(whose, default="another query")
    return f"the checkpoint is new, and the group has offsets of {of}"


def _group_owned_error(group_id: str, owners: Collection[Owner], what: str) -> ConfigurationError:
    ids = sorted({owner.query for owner in owners})
    return ConfigurationError(
        f"group_id {group_id!r} is owned by query {', '.join(ids)}, which {what}; so nothing is "
        "written. If this is a separate query, give it another group_id and another "
        "checkpoint_location. If it was moved on purpose and should continue from the group's "
        "offsets, set "
        f"moved_from={','.join(ids)!r}"
    )


def _topics(partitions: Iterable[TopicPartition]) -> str:
    return listed(map(repr, sorted({topic for topic, _ in partitions})))


# The arguments besides `delivery` that a query must keep.
_KEPT: Final = {
    DIRECT: ", and no source_kafka",
    MIRRORED: ", with source_kafka",
    STAGED: ", with the checkpoint it had",
}


def check_marker(marker: Marker, delivery: str, why: str = "") -> None:
    """Refuse a checkpoint that was begun with another delivery."""
    if marker.group_id is not None and marker.delivery != delivery:
        raise changed_delivery(marker.delivery, delivery, why)


def may_become_direct(marker: Marker, group_id: str, delivery: str, batch_id: int) -> bool:
    """Return True if a staged query may become direct, provided that nothing has been staged."""
    ours = marker.delivery == STAGED and marker.group_id == group_id
    return ours and delivery == DIRECT and batch_id == 0


def nothing_staged(offsets: Committed, progress_topic: str | None) -> bool:
    """Return True if a group's offsets prove that none of its batches was ever staged."""
    # The offset that a staged query commits at its start must exist. If that offset is missing, or
    # somebody has set it, it may have named a batch.
    staged = {p: o for p, o in offsets.items() if p == (progress_topic, COMMIT_PARTITION)}
    known = KnownPartitions.of(staged)
    return (
        [offset for offset, _ in staged.values()] == [first_position(0)]
        and not known.set_by_others
        and not KnownPartitions.of(offsets).staged
    )


def deliveries_of(known: KnownPartitions) -> list[str]:
    """Return the deliveries that a group's offsets reveal; direct delivery leaves no trace."""
    return [*([MIRRORED] if known.sources else []), *([STAGED] if known.staged else [])]


def changed_delivery(
    noted: str, wanted: str, why: str = "", perhaps_staged: Sequence[str] = ()
) -> CheckpointError:
    """Return the error for a query whose delivery has changed; ``why`` is the reason, if known."""
    cure = f"set delivery={noted!r}{_KEPT.get(noted, '')}"
    if why:
        cure = f"change the query back, so that its delivery can be {noted!r}"
    if len(perhaps_staged) == 1:
        [topic] = perhaps_staged
        cure += f"; or, if {topic!r} is the progress topic it began with, progress_topic={topic!r}"
    since = f", since {why}" if why else ""
    return CheckpointError(
        f"the query of this checkpoint or group has written with delivery={noted!r}, and would "
        f"now write with delivery={wanted!r}{since}. The offsets of the two deliveries mean "
        f"different things: {cure}; "
        "or begin with another checkpoint_location and another group_id, which writes everything "
        "again unless you choose where to start (starting_offsets, or the new group's offsets)"
    )
