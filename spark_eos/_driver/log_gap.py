"""Offset logs that Spark wrote asynchronously, and from which it would otherwise not start.

The only place where we write into Spark's part of a checkpoint. There is no other way: Spark wants
the entry of the batch before the last in the directory that it reads, whatever its options, and
with ``availableNow`` it has no asynchronous mode, which needs no such entry.
"""

from typing import Protocol

from spark_eos._driver.checkpoint_marker import Files
from spark_eos._driver.offset_log import OffsetLog, numbers
from spark_eos.errors import CheckpointError


class LogFiles(Files, Protocol):
    """The file operations on a checkpoint whose log is completed."""

    def copy_file(self, source: str, target: str) -> None:
        """Creates a file with the text of another one, at once or not at all."""


def complete_logs(files: LogFiles, *, every_batch: bool) -> int | None:
    """Lets Spark start from the logs of a query that tracked its progress asynchronously.

    Spark then logs about one batch a second, and each starts where the one logged before it ends.
    Without asynchronous progress tracking it wants every batch. So the last but one gets the
    offsets of the one before it, as Spark itself reads them in its asynchronous mode; what was
    written since, the group's offsets tell.
    """
    if not OffsetLog(files).marker().checkpoint_may_lag:
        return None
    logged, finished = numbers(files, "offsets"), numbers(files, "commits")
    if not logged:
        return None
    last = logged[-1]
    if finished and finished[-1] > last:
        raise CheckpointError(
            f"checkpoint_location {files.location!r} calls batch {finished[-1]} finished and has "
            f"offsets up to batch {last} only: a write to it has failed. Start with an empty "
            "checkpoint_location and the same group_id: the group's offsets tell where to go on"
        )
    if not every_batch or last == 0 or last - 1 in logged:
        return None
    if len(logged) == 1:
        raise CheckpointError(
            f"checkpoint_location {files.location!r} has the offsets of batch {last} and of none "
            "before it. Put back what was deleted, or start with another checkpoint_location and "
            "the same group_id: the group's offsets tell where to go on"
        )
    files.copy_file(f"offsets/{logged[-2]}", f"offsets/{last - 1}")
    return last - 1
