"""Gaps in an offset log that Spark wrote asynchronously, of which Spark else refuses to start."""

from typing import Protocol

from spark_eos.driver.offset_log import Files, OffsetLog
from spark_eos.errors import CheckpointError


class LogFiles(Files, Protocol):
    """The file operations on a checkpoint whose log is completed."""

    def copy_file(self, source: str, target: str) -> None:
        """Creates a file with the text of another one, at once or not at all."""


def check_commits(files: LogFiles) -> None:
    """Refuses logs of which Spark 4.0 to 4.2 would repeat a batch that they call finished.

    Spark would end at it each time, and speak of several streaming jobs. A write that has failed
    leaves such logs.

    Args:
        files: The checkpoint of a query that is stopped.

    Raises:
        CheckpointError: The last finished batch has no offsets, and neither has a later one.

    Example:
        ::

            check_commits(HadoopFiles(spark, checkpoint_location))
    """
    finished, logged = _numbers(files, "commits"), _numbers(files, "offsets")
    if finished and logged and finished[-1] > logged[-1] and OffsetLog(files).note().behind:
        raise CheckpointError(
            f"checkpoint_location {files.location!r} calls batch {finished[-1]} finished and has "
            f"offsets up to batch {logged[-1]} only: a write to it has failed. Start with an empty "
            "checkpoint_location and the same group_id: the group's offsets tell where to go on"
        )


def _numbers(files: Files, directory: str) -> list[int]:
    return sorted(int(name) for name in files.names(directory) if name.isdecimal())


def close_gap(files: LogFiles) -> int | None:
    """Lets Spark start a query without asynchronous progress tracking, if its log has gaps.

    Tracking progress asynchronously, Spark logs about one batch a second, and each starts where
    the one logged before it ends. Without, it wants every batch. So the last but one gets the
    offsets of the one before it, as Spark itself reads them in its asynchronous mode; what was
    written since, the group's offsets tell.

    Args:
        files: The checkpoint of a query that is stopped.

    Returns:
        The batch whose entry was added; None if nothing was missing.

    Raises:
        CheckpointError: The batch logged before the last one is missing too, or the checkpoint
            can't be read.

    Example:
        ::

            added = close_gap(HadoopFiles(spark, checkpoint_location))
    """
    if not OffsetLog(files).note().behind:
        return None
    logged = _numbers(files, "offsets")
    if not logged or logged[-1] == 0 or logged[-1] - 1 in logged:
        return None
    if len(logged) == 1:
        raise CheckpointError(
            f"checkpoint_location {files.location!r} has the offsets of batch {logged[-1]} and of "
            "none before it. Put back what was deleted, or start with another checkpoint_location "
            "and the same group_id: the group's offsets tell where to go on"
        )
    missing = logged[-1] - 1
    files.copy_file(f"offsets/{logged[-2]}", f"offsets/{missing}")
    return missing
