"""Staged copies of batches: Parquet files below the checkpoint, written and read by Spark."""

import contextlib
import functools
import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriter, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_eos._client.locations import without_credentials
from spark_eos._delivery.base import SinkQuery
from spark_eos._exactly_once.delivery import PlannedBatch
from spark_eos._exactly_once.task import Arrange, write_task
from spark_eos._kafka.progress_topic import first_position
from spark_eos._kafka.stored_text import StagedBatch, batch_of_copy, new_copy_name
from spark_eos._spark.batch_job import BatchJobs
from spark_eos._spark.columns import check_columns, payload
from spark_eos._spark.dead_letter_columns import (
    check_error_column,
    columns_of_copy,
    staged_columns,
)
from spark_eos._spark.runtime import QueryRuntime
from spark_eos._spark.spark_files import literal_path
from spark_eos._spark.topic_patterns import topic_is_source
from spark_eos._worker.arrow_columns import FILE_NUMBER, ROW, staged_batches
from spark_eos._worker.dead_letters import ERROR, LETTER
from spark_eos._worker.plan import BatchPlan, Partitions, task_count
from spark_eos._worker.task_report import JobOutcome
from spark_eos.errors import CheckpointError, text_of, warn

logger = logging.getLogger(__name__)

# Below the checkpoint, in our own directory, which Spark ignores.
_DIRECTORY: Final = "spark-eos/staged"
# Spark numbers a job's files by the partitions that they are made from: part-00000-...
_NUMBER_BEGINS: Final = len("part-") + 1
_NUMBER_ENDS_WITHIN: Final = 12
# More bytes than any file has, so that no file is split, and no task reads two files: a row's
# number in its file is its position.
_MORE_THAN_ANY_FILE: Final = str(1 << 50)
_ROWS: Final = "rows"
_WRITING: Final = {
    "maxRecordsPerFile": "0",
    # No marker file is needed: the staged commit says which copy is complete.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # With version 2, a task attempt that Spark has given up on may still replace a file.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
}
_NO_FILES: Final = {"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"}
# Seconds; well below the hour after which Spark Connect ends an unused session.
_SESSION_IDLE: Final = 600.0


class ParquetFiles:
    """The staged files of one run's batches, written and read by Spark (see `StagedFiles`)."""

    def __init__(self, query: SinkQuery, runtime: QueryRuntime) -> None:
        self._runtime = runtime
        self._dead_letters = query.settings.dead_letters is not None
        self._location = query.location.rstrip("/")
        self._progress_topic = query.progress_topic.name
        self._default_topic = query.settings.topic
        self._source_patterns = query.source_patterns
        self._final_steps = query.final_steps
        self._reader: SparkSession | None = None
        self._reader_used = 0.0
        self._staged: tuple[str, T.StructType] | None = None
        self._frame: DataFrame | None = None
        self._rows: DataFrame | None = None
        self.number_of_rows = 0
        self.arrange: Arrange = functools.partial(
            staged_batches, progress_topic=self._progress_topic, first=0
        )
        # PySpark takes milliseconds for each expression, so build these only once.
        self._number_of_rows = F.count(F.lit(1)).alias(_ROWS)
        # Don't use a regular expression: it takes longer than reading the row.
        name = F.col("_metadata.file_name").substr(_NUMBER_BEGINS, _NUMBER_ENDS_WITHIN)
        self._place = (
            F.substring_index(name, "-", 1).cast("int").alias(FILE_NUMBER),
            F.col("_metadata.row_index").alias(ROW),
        )
        self._copies: set[str] = set()

    def take(self, frame: DataFrame) -> None:
        frame = self._final_steps.applied_by_spark(frame)
        self._check(frame.schema)
        self._frame, self._rows = frame, None

    # Staging ----------------------------------------------------------------------------------

    def stage(self, batch_id: int, files: int) -> tuple[str, int]:
        assert self._frame is not None  # noqa: S101 - take comes first
        rows = self._payload(self._frame)
        name = new_copy_name(batch_id)
        # Each task writes one file. Rows of a partition stay together, in order.
        path = f"{self._location}/{_DIRECTORY}/{name}"
        written = self._run(
            rows.coalesce(files),
            lambda writer: writer.options(**_WRITING).parquet(path),
            f"spark-eos: staging batch {batch_id}",
        )
        if written:
            counted = self._runtime.rows_of_footers(path)
            if counted is None:
                counted = self._count(name, rows.schema, batch_id)
            if counted != written:
                raise CheckpointError(
                    f"batch {batch_id} was staged in {without_credentials(path)} with {written} "
                    f"rows, but {counted} can be read there; nothing of the batch is written. Is "
                    "checkpoint_location on a file system that all executors share?"
                )
        self._staged = name, rows.schema
        self._copies.add(name)
        return name, written

    def replay(self) -> int:
        """Run the batch's frame only to update the query's state; return its number of rows."""
        assert self._frame is not None  # noqa: S101 - take comes first
        return self._run(
            self._payload(self._frame),
            lambda writer: writer.format("noop").mode("overwrite").save(),
            "spark-eos: a staged batch's state",
        )

    def _run(
        self, rows: DataFrame, write: Callable[[DataFrameWriter], None], description: str
    ) -> int:
        assert self._frame is not None  # noqa: S101 - take comes first
        observation = Observation(f"spark-eos-{uuid.uuid4().hex}")
        writer = rows.observe(observation, self._number_of_rows).write
        session = self._frame.sparkSession
        self._runtime.run_job(session, lambda: write(writer), description)
        return int(self._runtime.observed(observation)[_ROWS])

    def _payload(self, frame: DataFrame) -> DataFrame:
        if self._dead_letters:
            return frame.select(*staged_columns(frame.schema))
        names = payload(frame.schema)
        # Skip the projection if possible: planning it takes milliseconds.
        return frame if names == frame.schema.names else frame.select(*names)

    def _check(self, schema: T.StructType) -> None:
        check_columns(schema, self._default_topic, source=False)
        check_error_column(schema, dead_letters=self._dead_letters)

    # Reading ----------------------------------------------------------------------------------

    def open(self, copy: StagedBatch) -> bool:
        """Let `rows` read this copy from now on; return True if its files exist."""
        self.number_of_rows = copy.rows
        if copy.directory is None:
            return True
        found = self._found(copy.directory)
        if found is None:
            return False
        schema, rows = found
        if not self._dead_letters and {ERROR, LETTER} & set(schema.names):
            raise CheckpointError(
                f"batch {copy.batch} was staged with dead_letters, so some of its rows may be bad, "
                "and without dead_letters they would be written like all others: set dead_letters "
                "again, at least until this batch is written"
            )
        if self._default_topic is None and "topic" not in schema.names:
            raise CheckpointError(
                f"batch {copy.batch} was staged for the sink's topic=, so its rows name no topic: "
                "set topic= again, at least until this batch is written"
            )
        self._check(schema)
        names = payload(schema)
        columns = columns_of_copy(schema) if self._dead_letters else names
        added = topic_is_source(names, self._source_patterns)
        self._rows = rows.select(*columns, *added, *self._place)
        self.arrange = functools.partial(
            staged_batches,
            progress_topic=self._progress_topic,
            first=first_position(copy.batch),
        )
        return True

    @property
    def rows(self) -> DataFrame:
        """The opened copy's rows, each with its file's number and its own number in the file."""
        assert self._rows is not None  # noqa: S101 - open comes first
        return self._rows

    def _found(self, name: str) -> tuple[T.StructType, DataFrame] | None:
        """Return the columns that a copy was written with, and its rows; None if it has no file."""
        own, schema = self._staged or ("", None)
        try:
            if schema is None or own != name:
                schema = self._read(name).schema
            return schema, self._read(name, schema)
        except AnalysisException as error:
            if error.getCondition() in _NO_FILES:
                return None
            raise

    def _read(self, name: str, schema: T.StructType | None = None) -> DataFrame:
        path = f"{self._location}/{_DIRECTORY}/{name}"
        reader = self._session().read
        if schema is not None:
            reader = reader.schema(schema)
        # Fail on rows that can't be read, whatever the session's settings are.
        reader = reader.options(ignoreCorruptFiles="false", ignoreMissingFiles="false")
        return reader.parquet(literal_path(path))

    def _count(self, name: str, schema: T.StructType, batch_id: int) -> int:
        counted = self._read(name, schema).agg(self._number_of_rows)
        (row,) = self._runtime.collect(counted, f"spark-eos: counting staged batch {batch_id}")
        return int(row[_ROWS])

    def _session(self) -> SparkSession:
        """Return a separate session, because a session's settings decide how files are split."""
        idle = time.monotonic() - self._reader_used
        if idle > _SESSION_IDLE:
            self.close()
        if self._reader is None:
            # Don't clone the last job's session, which may just have ended.
            assert self._frame is not None  # noqa: S101 - take comes first
            self._reader = session = self._runtime.another_session(self._frame.sparkSession)
            session.conf.set("spark.sql.files.maxPartitionBytes", _MORE_THAN_ANY_FILE)
            session.conf.set("spark.sql.files.openCostInBytes", _MORE_THAN_ANY_FILE)
            session.conf.set("spark.sql.files.minPartitionNum", "1")
            session.conf.unset("spark.sql.files.maxPartitionNum")
            # With adaptive execution, summing a few numbers would take more jobs.
            session.conf.set("spark.sql.adaptive.enabled", "false")
            # Only this version of the file source has `_metadata.row_index`.
            session.conf.set("spark.sql.sources.useV1SourceList", "parquet")
        self._reader_used = time.monotonic()
        return self._reader

    # Sweeping ---------------------------------------------------------------------------------

    def list_copies(self) -> None:
        # List the copies only once: after that, all further copies are this run's own.
        with self._sweeping():
            self._copies.update(self._runtime.files.names(_DIRECTORY))

    def remove_abandoned(self, batch_id: int, committed: str | None) -> None:
        self._remove({n for n in self._copies if batch_of_copy(n) == batch_id} - {committed})

    def remove_old(self, batch_id: int) -> None:
        numbers = {name: batch_of_copy(name) for name in self._copies}
        self._remove({name for name, n in numbers.items() if n is not None and n < batch_id})

    def _remove(self, names: Collection[str | None]) -> None:
        with self._sweeping():
            for name in sorted(filter(None, names)):
                self._runtime.files.delete(f"{_DIRECTORY}/{name}")
                self._copies.remove(name)

    @contextlib.contextmanager
    def _sweeping(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the next batch sweeps again
            warn(
                logger,
                "EOS64",
                "staged copies of earlier batches stay in %s/%s: %s",
                without_credentials(self._location),
                _DIRECTORY,
                without_credentials(text_of(error)),
            )

    def close(self) -> None:
        """End the session that read the copies, if there is one."""
        reader, self._reader = self._reader, None
        if reader is not None:
            with contextlib.suppress(Exception):
                self._runtime.end_session(reader)


class StagedJobs(BatchJobs):
    """Jobs whose rows are read from the files that a batch is staged in."""

    def __init__(self, query: SinkQuery, runtime: QueryRuntime, files: ParquetFiles) -> None:
        super().__init__(query.settings, runtime, query.source_patterns)
        self._files = files

    def run(
        self,
        planned: PlannedBatch,
        batch_plan: BatchPlan,
        only: Partitions | None,
    ) -> JobOutcome:
        rows, files = self._files.rows, len(planned.range.ends) - 1
        if only is None:
            cores = self._runtime.cores()
            tasks = task_count(self._files.number_of_rows, files, cores, wait_ms=0.0)
        else:
            rows = rows.where(F.col(FILE_NUMBER).isin([index - 1 for _topic, index in only]))
            tasks = self._further_tasks(files)
        rows = rows.coalesce(tasks)
        task = write_task(
            planned.settings,
            batch_plan,
            size=planned.size,
            discard_producer=only is not None,
            arrange=self._files.arrange,
        )
        return self._outcome(rows.mapInArrow(task, self._report), planned, only)
