"""`KafkaEosDataSource`: ``format("kafka-eos")``, on Spark's Python Data Source API.

Spark plans, writes and commits every batch in short-lived processes. A process beside them,
`spark_eos.datasource.keeper`, keeps the run from batch to batch.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_eos.batch.task_report import job_outcome
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.datasource.keeper_client import KeeperClient
from spark_eos.datasource.keeper_messages import Commit, Plan, Planned
from spark_eos.datasource.options import (
    answer_within,
    in_option_names,
    query_location,
    read_options,
)
from spark_eos.errors import CheckpointError, SparkEosError, UnsupportedPipelineError
from spark_eos.observability.on_batch import announce
from spark_eos.spark.columns import check_columns, check_target, marked, topics_of_marked
from spark_eos.spark.dead_letter_columns import (
    carries_record,
    check_error_column,
    direct_columns,
)
from spark_eos.spark.narrow_plan import check_stream
from spark_eos.spark.stream_sources import sources_of, topics_read
from spark_eos.spark.target_column import with_own_topic_marked
from spark_eos.worker.task import write_task

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceStreamArrowWriter,
        WriterCommitMessage,
    )
except ImportError as error:
    raise ImportError(
        f'format("kafka-eos") needs Spark 4.1 or newer, this is {pyspark.__version__}; '
        "use ExactlyOnceSink on Spark 4.0"
    ) from error

logger = logging.getLogger(__name__)

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"


class KafkaEosDataSource(DataSource):
    """Writes a streaming query's rows to Kafka exactly once: ``format("kafka-eos")``.

    Columns and guarantee are those of `ExactlyOnceSink`. The options are its arguments in Spark's
    spelling (``groupId``, ``maxTransactionRecords``), with client settings after ``kafka.``. Needs
    Spark 4.1.

    Example:
        Register the format once per session, then write with `write_stream`::

            spark.dataSource.register(KafkaEosDataSource)
            query = (
                write_stream(orders)
                .option("kafka.bootstrap.servers", "localhost:9092")
                .option("groupId", "order-processors")
                .option("topic", "orders-enriched")
                .option("checkpointLocation", "file:///checkpoints/orders")
                .start()
            )
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._plans = True

    def __getstate__(self) -> dict[str, Any]:
        # Spark creates an instance in the process that plans, and sends a copy to the one that
        # commits.
        return {**self.__dict__, "_plans": False}

    @classmethod
    def name(cls) -> str:
        """The format's name, ``kafka-eos``."""
        return "kafka-eos"

    def streamWriter(  # noqa: N802 - Spark's name for it
        self,
        schema: T.StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's too
    ) -> DataSourceStreamArrowWriter:
        """The writer of one batch; in the process that plans, it holds the batch's plan.

        Raises:
            SparkEosError: The batch can't be written; Spark stops the query with this error.
        """
        if not self._plans:
            return _Writer(_location(self.options))
        if overwrite:
            raise UnsupportedPipelineError("only output mode append can be written")
        with _raised_in_option_names():
            options = read_options(self.options)
            check_columns(schema, options.settings.topic)
            check_error_column(schema, dead_letters=options.settings.dead_letters is not None)
            settings = replace(options.settings, source_topics=topics_of_marked(schema))
            request = Plan(
                settings,
                options.checkpoint_location,
                options.max_members,
                options.group_timeout_ms,
            )
            location = _location(self.options)
            planned = KeeperClient(*location).plan(request, options.idle_timeout_ms / 1000)
        return _Writer(location, settings, planned)


def _location(options: Mapping[str, str]) -> tuple[str, str, float]:
    """The arguments of `KeeperClient`."""
    return (*query_location(options), answer_within(options))


@dataclass(frozen=True)
class _TaskReport(WriterCommitMessage):
    query_run: str
    text: str


class _Writer(DataSourceStreamArrowWriter):
    def __init__(
        self,
        location: tuple[str, str, float],
        settings: WriterSettings | None = None,
        planned: Planned | None = None,
    ) -> None:
        self._location = location
        self._settings = settings
        self._planned = planned

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        settings, planned = self._settings, self._planned
        if context is None or settings is None or planned is None:
            raise SparkEosError("only a Spark task of a planned batch can write")
        _check_batch(planned, context, self._location[1])
        (report,) = write_task(settings, planned.plan)(iterator)
        (text,) = report.column(0).to_pylist()
        return _TaskReport(context.getLocalProperty(_RUN_ID) or "", text)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name for it
        reports = [message for message in messages if isinstance(message, _TaskReport)]
        outcome = job_outcome(report.text for report in reports)
        query_run = reports[0].query_run if reports else ""
        with _raised_in_option_names():
            done = KeeperClient(*self._location).commit(Commit(batchId, query_run, outcome))
        announce(done, ())

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        # Nothing to undo: rows that tasks have committed stay, and the next run skips them. Spark
        # also calls this after a failed commit.
        KeeperClient(*self._location).abort()


def _check_batch(planned: Planned, context: TaskContext, checkpoint: str) -> None:
    query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if (query_id, batch_id) != (planned.query_id, str(planned.batch_id)):
        raise CheckpointError(
            f"checkpointLocation {checkpoint!r}, as Python sees it on the driver's host, has batch "
            f"{planned.batch_id} of query {planned.query_id}, but this is batch {batch_id} of "
            f"query {query_id}: give the full URI, such as hdfs://namenode/checkpoints/orders"
        )


@contextmanager
def _raised_in_option_names() -> Iterator[None]:
    try:
        yield
    except SparkEosError as error:
        raise in_option_names(error) from None


def write_stream(frame: DataFrame) -> DataStreamWriter:
    """Checks a streaming DataFrame and returns its writer for ``format("kafka-eos")``.

    Every query must start here: a data source sees rows but no plan, so it refuses rows that were
    not checked here. Set options and a trigger on the writer, then call ``start()``.

    Example:
        Options as in `KafkaEosDataSource`::

            write_stream(orders.select("source", "key", "value")).options(**options).start()

    Args:
        frame: The streaming DataFrame; columns as for `ExactlyOnceSink.write`.

    Returns:
        A DataStreamWriter with the format set.

    Raises:
        UnsupportedPipelineError: A column, a source's option or an operator of the plan prevents
            exactly-once.
    """
    # The writer checks the topic, which its options may set.
    check_columns(frame.schema, "")
    check_stream(frame, lineage_follows=False)
    check_target(with_own_topic_marked(frame).schema)
    sources = sources_of(frame)
    if carries_record(frame.schema):
        frame = frame.select(*direct_columns(frame.schema))
    writer = marked(frame, topics_read(sources)).writeStream.format(KafkaEosDataSource.name())
    ignores_loss = any(
        source.options.get("failondataloss", "true").lower() == "false" for source in sources
    )
    return writer.option("failOnDataLoss", "false") if ignores_loss else writer
