"""Spark's asynchronous progress tracking, which a sink may use whose progress is in the group.

Before each batch Spark logs its offsets, and after it that it has ended: half of the time of
a batch of 100 rows. Asynchronously it does both aside, and about once a second only. What it has
not logged it runs again after a crash, in other batches; rows that are written are skipped, since
the group's offsets were committed with them. Spark lets its own Kafka sink do so, which writes
such rows twice, and no other sink (AsyncProgressTrackingMicroBatchExecution).
"""

import functools
import logging
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_eos.driver.checkpoint_note import STAGED
from spark_eos.driver.log_gap import LogFiles, complete_logs
from spark_eos.errors import UnsupportedPipelineError
from spark_eos.spark.connect import is_connect

logger = logging.getLogger(__name__)

_ENABLED: Final = "asyncProgressTrackingEnabled"
# Spark's own tests run other sinks with it; it has no public name.
_ANY_SINK: Final = "_asyncProgressTrackingOverrideSinkSupportCheck"
_EXECUTION: Final = "AsyncProgressTrackingMicroBatchExecution"


def is_asynchronous(execution: Any) -> bool:
    """Whether a query tracks its progress asynchronously, whoever asked for it.

    Args:
        execution: Its ``StreamExecution`` in Spark's JVM.
    """
    return str(execution.getClass().getSimpleName()) == _EXECUTION


def check_asynchronous(frame: DataFrame, delivery: str) -> None:
    """Refuses ``asynchronous_progress`` where Spark's logs are needed.

    Args:
        frame: The streaming DataFrame.
        delivery: The road it takes.

    Raises:
        UnsupportedPipelineError: On Spark Connect, or with staged batches.

    Example:
        ::

            check_asynchronous(frame, "direct")
    """
    if is_connect(frame):
        raise UnsupportedPipelineError(
            "asynchronous_progress needs classic Spark: on Spark Connect only Spark's log tells "
            "which offsets a batch has. Leave it out"
        )
    check_logged(delivery)


def check_logged(delivery: str) -> None:
    """Refuses asynchronous progress tracking for batches that Spark must repeat as they were.

    Args:
        delivery: The road of the query.

    Raises:
        UnsupportedPipelineError: The query's batches are staged.

    Example:
        >>> check_logged("direct")
    """
    if delivery == STAGED:
        raise UnsupportedPipelineError(
            "the query's batches are staged, and Spark must know each of them after a crash: "
            "leave out asynchronous_progress (Spark's asyncProgressTrackingEnabled)"
        )


class ProgressTracking:
    """Chooses at a query's start how Spark tracks its progress.

    Args:
        writer: The query's writer; its trigger decides.
        wanted: Whether to track the progress asynchronously, where the trigger allows it.
        files: Opens the checkpoint.
    """

    def __init__(
        self, writer: DataStreamWriter, files: Callable[[], LogFiles], *, wanted: bool
    ) -> None:
        self._writer = writer
        self._files = files
        self._wanted = wanted
        self._ends = False
        choose = writer.trigger

        @functools.wraps(choose)
        def trigger(**chosen: Any) -> DataStreamWriter:
            self._ends = bool(chosen.get("availableNow") or chosen.get("once"))
            return choose(**chosen)

        vars(writer)["trigger"] = trigger

    def prepare(self) -> None:
        """Sets the writer's options, and completes an offset log that would stop Spark's start.

        Raises:
            CheckpointError: The logs can't be used, or not be completed.
        """
        if self._wanted:
            self._writer.option(_ENABLED, str(not self._ends).lower())
            self._writer.option(_ANY_SINK, "true")
        files = self._files()
        added = complete_logs(files, every_batch=not self._wanted or self._ends)
        if added is not None:
            logger.info(
                "checkpoint %s: batch %d added to the offset log, since Spark had tracked the "
                "query's progress asynchronously",
                files.location,
                added,
            )
