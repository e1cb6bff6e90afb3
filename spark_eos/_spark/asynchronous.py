"""Spark's asynchronous progress tracking, which a sink may use whose progress is in the group.

Before each batch Spark logs its offsets, and after it that it has ended: half of the time of
a batch of 100 rows. Asynchronously it does both aside, and about once a second only. What it has
not logged it runs again after a crash, in other batches; rows that are written are skipped, since
the group's offsets were committed with them. Spark lets its own Kafka sink do so, which writes
such rows twice, and no other sink (AsyncProgressTrackingMicroBatchExecution).
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame

from spark_eos._driver.offset_log import LogFiles, complete_logs
from spark_eos._pyspark_internals import ANY_SINK_ASYNCHRONOUS, is_connect
from spark_eos.errors import UnsupportedPipelineError

logger = logging.getLogger(__name__)

_ENABLED: Final = "asyncProgressTrackingEnabled"


def check_classic(frame: DataFrame) -> None:
    """Refuses ``asynchronous_progress`` on Spark Connect."""
    if is_connect(frame):
        raise UnsupportedPipelineError(
            "asynchronous_progress needs classic Spark: on Spark Connect only Spark's log tells "
            "which offsets a batch has. Leave it out"
        )


def tracking_options(
    files: LogFiles, trigger: Mapping[str, Any], *, wanted: bool
) -> dict[str, str]:
    """The options of a query that say how Spark tracks its progress.

    Completes an offset log that would keep Spark from starting.
    """
    ends = bool(trigger.get("availableNow") or trigger.get("once"))
    added = complete_logs(files, every_batch=not wanted or ends)
    if added is not None:
        logger.info(
            "checkpoint %s: batch %d added to the offset log, since Spark had tracked the "
            "query's progress asynchronously",
            files.location,
            added,
        )
    return {_ENABLED: str(not ends).lower(), ANY_SINK_ASYNCHRONOUS: "true"} if wanted else {}
