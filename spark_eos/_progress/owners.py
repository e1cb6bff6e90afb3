"""Whether a group's offsets are another query's, which may have written elsewhere; pure.

Only their texts tell. Those of earlier versions don't, and refuse nothing.
"""

from collections.abc import Collection
from typing import Final

from spark_eos._batch.partition_pairs import PartitionPairs
from spark_eos._batch.plan import Partitions
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.stored_text import Owner
from spark_eos.errors import ConfigurationError

# Errors name at most so many topics.
_NAMED: Final = 5


def owners_of(known: KnownPartitions, pairs: PartitionPairs, read: Partitions) -> set[Owner]:
    """The owners of the offsets that some source partitions' topics have."""
    topics = {pairs.progress(partition).topic for partition in read}
    return {owner for topic in topics for owner in known.owners.get(topic, ())}


def check_owner(
    group_id: str,
    own: Owner,
    known: KnownPartitions,
    pairs: PartitionPairs,
    read: Partitions,
    moved_from: str | None,
    *,
    begun_with: str | None,
) -> None:
    """Refuses offsets of a query that writes to another topic, or reads nothing of what is read.

    ``begun_with``: the group with which this query has written before.

    Example:
        >>> from spark_eos._kafka.topic_partition import TopicPartition
        >>> known = KnownPartitions(
        ...     frozenset([TopicPartition("orders", 0)]),
        ...     owners={"orders": frozenset([Owner("5f1c0a7e", "copy")])},
        ... )
        >>> def check(own, topic="orders", moved_from=None):
        ...     read = [TopicPartition(topic, 0)]
        ...     pairs = PartitionPairs()
        ...     check_owner("g", own, known, pairs, read, moved_from, begun_with=None)
        >>> check(Owner("5f1c0a7e", "another"), "payments")  # with its own checkpoint
        >>> check(Owner("0d9e11b2", "copy"))
        >>> check(Owner("0d9e11b2", "another"), moved_from="5f1c0a7e")
        >>> check(Owner("0d9e11b2", "another"))
        Traceback (most recent call last):
        spark_eos.errors.ConfigurationError: group_id 'g' is owned by query ...
        >>> check(Owner("0d9e11b2", "copy"), "payments")
        Traceback (most recent call last):
        spark_eos.errors.ConfigurationError: group_id 'g' is owned by query ...
    """
    every = {owner for owners in known.owners.values() for owner in owners}
    moved = (moved_from or "").replace(",", " ").split()
    admitted = {own.query, *(Owner.of(query, None).query for query in moved)}
    if all(owner.query in admitted for owner in every):
        return
    strangers = [one for one in owners_of(known, pairs, read) if one.query not in admitted]
    if elsewhere := [one for one in strangers if one.target != own.target]:
        what = (
            f"writes to {min(one.written_to for one in elsewhere)}. What its offsets have passed "
            f"would never be written to {own.written_to}"
        )
        raise _group_owned_error(group_id, elsewhere, what)
    if begun_with == group_id:
        return
    if strangers and begun_with is not None:
        what = (
            f"has a checkpoint of its own, and this one is of group {begun_with!r}. What its "
            "offsets have passed would never be written by this query"
        )
        raise _group_owned_error(group_id, strangers, what)
    before = {pairs.source(p) for p in (*known.partitions, *known.set_by_others)}
    if before.isdisjoint(read) and all(owner.query != own.query for owner in every):
        what = f"reads {_topics(before)}, and not {_topics(read)}. Each would stop the other"
        raise _group_owned_error(
            group_id, [one for one in every if one.query not in admitted], what
        )


def ownership_change(own: Owner, owners: Collection[Owner], *, new: bool) -> str:
    """What a query that may continue from offsets should say of itself; "" if nothing.

    ``new``: whether it has not written from its checkpoint before.

    Example:
        >>> ownership_change(Owner("0d9e", "out"), {Owner("5f1c", "out")}, new=True)
        "the checkpoint is new, and the group has offsets of query 5f1c, which wrote to 'out'"
        >>> ownership_change(Owner("5f1c", "other"), {Owner("5f1c", "out")}, new=False)
        "the topic is 'other' now, and was 'out'"
        >>> ownership_change(Owner("5f1c", "out"), {Owner("5f1c", "out")}, new=True)
        ''
    """
    mine = {one.written_to for one in owners if one.query == own.query}
    if mine:
        changed = f"the topic is {own.written_to} now, and was {min(mine)}"
        return "" if own.written_to in mine else changed
    if not new:
        return ""
    whose = {f"query {one.query}, which wrote to {one.written_to}" for one in owners}
    of = min(whose, default="another query")
    return f"the checkpoint is new, and the group has offsets of {of}"


def _group_owned_error(group_id: str, owners: Collection[Owner], what: str) -> ConfigurationError:
    ids = sorted({owner.query for owner in owners})
    return ConfigurationError(
        f"group_id {group_id!r} is owned by query {', '.join(ids)}, which {what}; so nothing is "
        "written. If this is a query of its own, give it another group_id and another "
        "checkpoint_location. If it has moved on purpose, and is to continue from the group's "
        "offsets, set "
        f"moved_from={','.join(ids)!r}"
    )


def _topics(partitions: Partitions) -> str:
    names = sorted({topic for topic, _ in partitions})
    return ", ".join(map(repr, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
