"""A query keeps the delivery it began with: with another one its offsets mean something else.

One that has staged nothing yet may still become direct. Rows are written after a batch's staged
commit only, and that stays in the offset of the commit partition from then on.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from spark_eos._batch.progress import COMMIT_PARTITION, first_position
from spark_eos._driver.checkpoint_marker import DIRECT, MIRRORED, STAGED, Marker
from spark_eos._kafka.offset_metadata import CommittedOffset, KnownPartitions
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import CheckpointError

# What beside `delivery` makes a query what it was.
_KEPT: Final = {
    DIRECT: ", and no source_kafka",
    MIRRORED: ", with source_kafka",
    STAGED: ", with the checkpoint it had",
}


def check_marker(marker: Marker, delivery: str, why: str = "") -> None:
    """Refuses a checkpoint that was begun with another delivery."""
    if marker.group_id is not None and marker.delivery != delivery:
        raise changed_delivery(marker.delivery, delivery, why)


def may_become_direct(marker: Marker, group_id: str, delivery: str, batch_id: int) -> bool:
    """Whether the group's offsets may show that a staged query has written nothing."""
    ours = marker.delivery == STAGED and marker.group_id == group_id
    return ours and delivery == DIRECT and batch_id == 0


def nothing_staged(
    offsets: Mapping[TopicPartition, CommittedOffset], progress_topic: str | None
) -> bool:
    """Whether a group's offsets prove that none of its batches was ever staged.

    Its commit partition must have the offset that a staged query's start has committed. One that
    is missing, or that somebody has set, may have named a batch.
    """
    found = {p: o for p, o in offsets.items() if p == (progress_topic, COMMIT_PARTITION)}
    known = KnownPartitions.of(found)
    return (
        [offset for offset, _ in found.values()] == [first_position(0)]
        and not known.set_by_others
        and not KnownPartitions.of(offsets).staged
    )


def deliveries_of(known: KnownPartitions) -> list[str]:
    """The deliveries that a group's offsets are of; none if they may be direct, or are none."""
    return [*([MIRRORED] if known.sources else []), *([STAGED] if known.staged else [])]


def changed_delivery(
    noted: str, wanted: str, why: str = "", perhaps_staged: Sequence[str] = ()
) -> CheckpointError:
    """The error for a query that was begun with another delivery.

    ``why``: what the query has that it can't keep the one it began with, if that is the reason.
    ``perhaps_staged``: topics with offsets of which one may be the progress topic it began with.
    """
    cure = f"set delivery={noted!r}{_KEPT.get(noted, '')}"
    if why:
        cure = f"change the query back, so that its delivery can be {noted!r}"
    if len(perhaps_staged) == 1:
        [topic] = perhaps_staged
        cure += f"; or, if {topic!r} is the progress topic it began with, progress_topic={topic!r}"
    since = f", since {why}" if why else ""
    return CheckpointError(
        f"the query of this checkpoint or group has written with delivery={noted!r}, and would "
        f"now write with delivery={wanted!r}{since}. Their offsets mean different things: {cure}; "
        "or begin with another checkpoint_location and another group_id, which writes everything "
        "again unless you choose where to start (starting_offsets, or the new group's offsets)"
    )
