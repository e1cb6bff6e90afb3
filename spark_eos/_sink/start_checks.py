"""Checks, from its checkpoint and topics, whether a query can start, or why it has failed."""

# The checks run before Spark starts the query, and again if the query fails with one of Spark's own
# errors, which would name neither the cause nor a remedy.

import logging
from dataclasses import dataclass

from pyspark.sql import SparkSession

from spark_eos._checkpoint.check import CheckpointCheck
from spark_eos._checkpoint.marker import Files
from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._checks.start import Start
from spark_eos._delivery.base import SinkQuery
from spark_eos._delivery.choice import DELIVERIES
from spark_eos._kafka.topic_cache import recreated
from spark_eos._sink.reader import source_partitions
from spark_eos._spark.stream_sources import check_still_read, readers
from spark_eos.errors import SparkEosError, TopicNotFoundError, UnsupportedPipelineError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StartChecks:
    """The checks of one start of a query."""

    query: SinkQuery
    spark: SparkSession
    files: Files
    # True if Spark logs the offsets of every batch before the batch.
    every_batch: bool

    def check(self, start: Start) -> None:
        """Refuse a start that Spark would end with an error of its own."""
        self._check_checkpoint()
        self._check_topics(start)

    def why_failed(self) -> SparkEosError | None:
        """Check again; return the error of a failing check, which explains the query's failure."""
        # Use separate connections: the run's thread and the user's may both ask at the same time.
        start = Start(self.query.settings)
        try:
            with start as step:
                self.check(step)
        except SparkEosError as error:
            return error
        except Exception as error:
            logger.debug("can't find out why the query has failed", exc_info=error)
        finally:
            start.close()
        return None

    def _check_checkpoint(self) -> None:
        spark, query = self.spark, self.query
        log = OffsetLog(self.files)
        marker = log.markers.read()
        begun_with = DELIVERIES.get(marker.delivery) if marker.group_id is not None else None
        restart = (begun_with or query.delivery).without_checkpoint
        check = CheckpointCheck(self.files, restart)
        entry = check.check_logs(every_batch=self.every_batch)
        if entry is not None:
            check.check_number(entry, len(query.sources))
        check_still_read(query.sources, spark, log)
        if entry is not None:
            losses = not query.settings.fail_on_data_loss
            check.check_sources(entry, readers(query.sources, spark, include_dropped_topics=losses))

    def _check_topics(self, start: Start) -> None:
        settings, query = self.query.settings, self.query
        for selection, at_read in zip(query.selections, query.topics_at_read, strict=True):
            now, _ = source_partitions(self.spark, start.source, selection, start.deadline())
            if settings.fail_on_data_loss and (gone := sorted(at_read.keys() - now.keys())):
                raise TopicNotFoundError(f"source topic {', '.join(gone)} no longer exists")
            for name, topic in sorted(now.items()):
                before = at_read.get(name)
                if before is not None and before.topic_id != topic.topic_id:
                    raise recreated(name, before.topic_id, topic.topic_id, query.settings.group_id)
                known = 0 if before is None else before.partitions
                if topic.partitions > known and "assign" not in selection:
                    self._refuse_added(name, known, topic.partitions)

    def _refuse_added(self, topic: str, known: int, partitions: int) -> None:
        if self.files.names("sources"):
            # Spark has logged where the query begins, and finds new partitions by itself.
            return
        raise UnsupportedPipelineError(
            f"topic {topic!r} had {known} partitions when sink.read was called, and has "
            f"{partitions} now; Spark needs an offset for each partition to start a new query. "
            "Call sink.read again, and write the DataFrame that it returns"
        )
