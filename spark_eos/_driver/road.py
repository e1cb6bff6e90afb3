"""A query keeps the road on which it was begun: on another one its offsets mean something else."""

from spark_eos._driver.checkpoint_note import DIRECT, MIRRORED, STAGED, Note
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos.errors import CheckpointError


def check_note(note: Note, delivery: str) -> None:
    """Refuses to go on with a checkpoint on another road."""
    if note.group_id is not None and note.delivery != delivery:
        raise other_road(note.delivery, delivery)


def check_offsets(known: KnownPartitions, delivery: str, progress_topic: str | None = None) -> None:
    """Refuses to go on with a group on another road, whatever became of the checkpoint's note."""
    if known.sources and delivery != MIRRORED:
        raise other_road(MIRRORED, delivery)
    # Of whichever checkpoint: without one a query would else begin anew, and write all again.
    if known.staged and delivery != STAGED:
        raise other_road(STAGED, delivery)
    if delivery != STAGED:
        return
    if ledgers := sorted({topic for topic, _ in known.staged} - {progress_topic}):
        raise CheckpointError(
            f"the group's staged batches are noted in topic {ledgers[0]!r}, and progress_topic is "
            f"{progress_topic!r}: set progress_topic={ledgers[0]!r}; or, to begin anew knowingly, "
            "take another group_id"
        )
    if any(topic != progress_topic for topic, _ in known.partitions):
        raise other_road(DIRECT, delivery)


def other_road(noted: str, wanted: str) -> CheckpointError:
    """The error for a query that was begun on one road and would go on on another."""
    cure = f"set delivery={noted!r}"
    if MIRRORED in (noted, wanted):
        cure += f", {'with' if noted == MIRRORED else 'without'} source_kafka"
    if noted == STAGED:
        cure += ", with the checkpoint it had"
    return CheckpointError(
        f"the query of this checkpoint or group has written with delivery={noted!r}, and would "
        f"now write with delivery={wanted!r}, whose offsets mean something else: {cure}; or begin "
        "with another checkpoint_location and another group_id, which writes everything again "
        "unless you choose where to start (starting_offsets, or the new group's offsets)"
    )
