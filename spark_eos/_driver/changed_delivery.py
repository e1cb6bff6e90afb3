"""A query keeps the delivery it began with: with another one its offsets mean something else."""

from spark_eos._driver.checkpoint_marker import DIRECT, MIRRORED, STAGED, Marker
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos.errors import CheckpointError


def check_marker(marker: Marker, delivery: str, why: str = "") -> None:
    """Refuses a checkpoint that was begun with another delivery."""
    if marker.group_id is not None and marker.delivery != delivery:
        raise changed_delivery(marker.delivery, delivery, why)


def check_offsets(
    known: KnownPartitions, delivery: str, progress_topic: str | None = None, why: str = ""
) -> None:
    """Refuses a group that was begun with another delivery, whatever became of the marker."""
    if known.sources and delivery != MIRRORED:
        raise changed_delivery(MIRRORED, delivery, why)
    # Of whichever checkpoint: without one a query would else begin anew, and write all again.
    if known.staged and delivery != STAGED:
        raise changed_delivery(STAGED, delivery, why)
    if delivery != STAGED:
        return
    if topics := sorted({topic for topic, _ in known.staged} - {progress_topic}):
        raise CheckpointError(
            f"the group's staged batches are noted in topic {topics[0]!r}, and progress_topic is "
            f"{progress_topic!r}: set progress_topic={topics[0]!r}; or, to begin anew knowingly, "
            "take another group_id"
        )
    if any(topic != progress_topic for topic, _ in known.partitions):
        raise changed_delivery(DIRECT, delivery, why)


def changed_delivery(noted: str, wanted: str, why: str = "") -> CheckpointError:
    """The error for a query that was begun with another delivery.

    ``why``: what the query has that it can't keep the one it began with, if that is the reason.
    """
    if MIRRORED in (noted, wanted) and STAGED not in (noted, wanted):
        cure = f"set delivery={noted!r}, {'with' if noted == MIRRORED else 'without'} source_kafka"
    elif noted == STAGED:
        cure = f"set delivery={STAGED!r}, with the checkpoint it had"
    elif why:
        cure = f"change the query back, so that its delivery can be {noted!r}"
    else:
        cure = f"set delivery={noted!r}" + (", with source_kafka" if noted == MIRRORED else "")
    since = f", since {why}" if why else ""
    return CheckpointError(
        f"the query of this checkpoint or group has written with delivery={noted!r}, and would "
        f"now write with delivery={wanted!r}{since}. Their offsets mean different things: {cure}; "
        "or begin with another checkpoint_location and another group_id, which writes everything "
        "again unless you choose where to start (starting_offsets, or the new group's offsets)"
    )
