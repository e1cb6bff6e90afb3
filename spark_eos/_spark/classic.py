"""Classic Spark: the sink runs in the driver's process and calls Spark's JVM through py4j."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

from pyspark import SparkContext
from pyspark.sql import DataFrame, Observation, Row, SparkSession

from spark_eos import _pyspark_internals as internals
from spark_eos._checkpoint.marker import Files
from spark_eos._checkpoint.offset_log import OffsetLog, fingerprint_of, parse_positions
from spark_eos._kafka.deadline import Deadline, RetriableError
from spark_eos._spark.narrow_plan import check_batch_plan, check_lineage, operators_of_tree
from spark_eos._spark.runtime import QueryRuntime
from spark_eos._spark.signed_errors import ERRORS_CARRIED, tag_of
from spark_eos._spark.spark_files import HadoopFiles
from spark_eos._spark.stream_sources import sources_of_query
from spark_eos._worker.plan import BatchRange
from spark_eos.errors import CheckpointError, QueryStoppedError, UnsupportedPipelineError

# Seconds to wait for an observation. Spark drops events if its listeners are too slow.
_OBSERVED: Final = 60.0
# Above this number of Parquet files, tasks count rows faster than the driver does: the driver reads
# a few files at a time (parquet.metadata.read.parallelism, 5), and each call from Python to the JVM
# takes time.
_MOST_FILES: Final = 16
_DESCRIPTION: Final = "spark.job.description"
_INTERRUPTIONS: Final = re.compile(
    r"java\.(?:lang\.InterruptedException|io\.InterruptedIOException"
    r"|nio\.channels\.ClosedByInterruptException)"
)
_FRAME: Final = "\n\tat "


class ExecutionLog(OffsetLog):
    """Batch ranges from the query's execution, which also determines the batch's rows."""

    # If the file system lets two drivers create the same file, another driver may have written the
    # log in the checkpoint.

    def __init__(self, files: Files, query: internals.Execution) -> None:
        super().__init__(files)
        self._query = query

    def batch_range(self, batch_id: int) -> BatchRange:
        running = self._running(batch_id)
        where = f"batch {batch_id}"
        ends = parse_positions(running.ends(), where)
        # Spark reports no start offsets for the first batch that it knows; the checkpoint has them.
        starts = parse_positions(running.starts(), where) or self.initial()
        return BatchRange(batch_id, starts, ends)

    def fingerprint(self, batch_id: int) -> str:
        return fingerprint_of(self._entry(batch_id).began_ms, self._running(batch_id).ends())

    def _running(self, batch_id: int) -> internals.RunningBatch:
        running = self._query.running_batch()
        if running.batch_id != batch_id:
            raise CheckpointError(
                f"the sink was called for batch {batch_id} while the query runs batch "
                f"{running.batch_id}: call the sink in the foreachBatch function, with the "
                "function's own batch"
            )
        return running


class ClassicRuntime(QueryRuntime):
    stop_waits = True

    def __init__(
        self,
        frame: DataFrame,
        location: str,
        spark: SparkSession,
        check_sources: Callable[[Sequence[internals.StreamSource]], None],
        signature: str,
    ) -> None:
        # The batch's session is a clone of the user's session and does not know the query.
        self._session = frame.sparkSession
        query_id = internals.query_of_thread(self._session)
        query = internals.Execution.of(self._session, query_id)
        if query is None:
            raise UnsupportedPipelineError(
                "the sink was called outside of a query: start one with sink.write(...).start()"
            )
        super().__init__(spark, query_id, query.run_id, signature)
        self._query = query
        self._plans = internals.PlanReader(self._session)
        self.asynchronous = query.is_asynchronous
        self.files: Files = HadoopFiles(self._session, location)
        self.offset_log: OffsetLog = ExecutionLog(self.files, query)
        logged = self.offset_log.query_id()
        if logged != query_id:
            raise CheckpointError(
                f"checkpoint_location {self.files.location!r} belongs to query {logged}, but this "
                f"is query {query_id}: the sink and the query need the same checkpoint; start the "
                "query from sink.write(...), which sets it"
            )
        sources = sources_of_query(query)
        check_sources(sources)
        self._sources = len(sources)

    def hold(self, frame: DataFrame) -> bool:
        # The thread's properties name the run. Ask the frame's session: the run's session may have
        # been stopped.
        query_id = internals.query_of_thread(frame.sparkSession)
        execution = internals.Execution.of(frame.sparkSession, query_id)
        return execution is not None and execution.run_id == self.run_id

    def check_batch(self, frame: DataFrame, job: DataFrame, batch: BatchRange) -> None:  # noqa: ARG002
        """See `QueryRuntime.check_batch`."""
        # Only RDDs show where a batch's rows come from, and only the plan shows what happens within
        # a partition. Spark keeps these RDDs with the job's plan, so exactly these RDDs run.
        tasks, rows = self._query.batch_rows()
        moved = sum(batch.starts.get(partition) != end for partition, end in batch.ends.items())
        # Without rows, coalesce makes one partition.
        if tasks > max(1, moved):
            raise UnsupportedPipelineError(
                f"the batch has {tasks} Spark partitions for {moved} source partitions with "
                "records, so rows of a source partition are split across tasks: remove "
                "repartition, minPartitions and the like"
            )
        plan, lineage = self._plans.plan_and_lineage(job)
        check_lineage(lineage, rows, self._sources)
        check_batch_plan(operators_of_tree(plan))

    def cores(self) -> int:
        # Ask each time: executors come and go.
        return self._session.sparkContext.defaultParallelism

    def tasks(self, job: DataFrame) -> int | None:
        """Return the job's task count: PySpark takes a lost connection for the end of the rows."""
        return internals.task_count(job)

    def collect(
        self, frame: DataFrame, description: str, *, errors_carried: bool = False
    ) -> list[Row]:
        with self._tagged(description, *[ERRORS_CARRIED] * errors_carried):
            return frame.collect()

    def run_job(
        self,
        session: SparkSession,  # noqa: ARG002 - all sessions share one SparkContext
        action: Callable[[], object],
        description: str,
    ) -> None:
        with self._tagged(description):
            action()

    @contextmanager
    def _tagged(self, description: str, *tags: str) -> Iterator[None]:
        context = self._session.sparkContext
        with described(context, description):
            for tag in (own := (tag_of(self._signature), *tags)):
                context.addJobTag(tag)
            try:
                yield
            finally:
                for tag in own:
                    context.removeJobTag(tag)

    def observed(self, observation: Observation) -> dict[str, Any]:
        # Spark's own ``get`` may wait forever.
        deadline = Deadline(_OBSERVED, "spark.scheduler.listenerbus.eventqueue.capacity")

        def attempt() -> dict[str, Any]:
            if not internals.is_observed(observation):
                raise RetriableError("Spark's listeners have not seen the job's end yet")
            return observation.get

        return deadline.attempts("counting staged rows", pause=0.002)(attempt)

    def rows_of_footers(self, path: str) -> int | None:
        return footer_rows(self._session, path)

    def another_session(self, session: SparkSession) -> SparkSession:
        # newSession would copy no settings, not even the file system's credentials.
        return internals.cloned_session(session)

    def end_session(self, session: SparkSession) -> None:
        """Do nothing: stopping a classic session stops Spark."""

    def stopped(self, error: BaseException) -> QueryStoppedError | None:
        try:
            query = self.session.streams.get(self._query_id)
            stopped = internals.is_stopped(self._session.sparkContext)
            active = query is not None and query.isActive and not stopped
        except Exception:  # noqa: BLE001 - if the JVM has ended, so has the query
            active = False
        if active:
            return None
        # `HadoopFiles` replaces the error of an interrupted call, and so does PySpark.
        return as_query_stopped_error(error) or as_query_stopped_error(error.__context__)


@contextmanager
def described(context: SparkContext, text: str) -> Iterator[None]:
    """Put a text before Spark's own description of this thread's jobs, which names the query.

    Restore the description at the end.
    """
    before = context.getLocalProperty(_DESCRIPTION)
    whole = text if before is None else f"{text}\n{before}"
    with local_property(context, _DESCRIPTION, whole, before):
        yield


@contextmanager
def local_property(
    context: SparkContext, name: str, text: str, before: str | None = None
) -> Iterator[None]:
    """Set a property of the jobs that this thread starts; reset it to ``before`` afterwards."""
    context.setLocalProperty(name, text)
    try:
        yield
    finally:
        # None removes it.
        context.setLocalProperty(name, cast("str", before))


def footer_rows(session: SparkSession, path: str) -> int | None:
    """Count the rows of a directory's Parquet files with Hadoop's and Parquet's own readers."""
    java = internals.java_packages(session)
    conf = internals.hadoop_configuration(session)
    directory = java.org.apache.hadoop.fs.Path(path)
    file_system = directory.getFileSystem(conf)
    if not file_system.exists(directory):
        return 0
    # Make few calls: each one takes time. Like Spark, readFooters skips names that begin with "_"
    # or ".".
    if len(file_system.listStatus(directory)) > _MOST_FILES:
        return None
    footers = java.org.apache.parquet.hadoop.ParquetFileReader.readFooters(conf, directory)
    blocks = [footer.getParquetMetadata().getBlocks() for footer in _items(footers)]
    return sum(
        int(block.getRowCount()) for footer_blocks in blocks for block in _items(footer_blocks)
    )


def _items(items: Any) -> Iterator[Any]:
    """Yield a Java list's items by index: ending an iterator costs py4j a hundred calls."""
    for index in range(items.size()):
        yield items.get(index)


def as_query_stopped_error(error: BaseException | None) -> QueryStoppedError | None:
    """Return an interrupted or cancelled job's error without Java's stack trace, else None."""
    # While Spark stops a query, it searches the error's text for the interruption with a regular
    # expression that recurses on every character (SPARK-48717): a long stack trace may overflow
    # the thread's stack.
    kind = type(error)
    if kind.__name__ != "Py4JJavaError":
        return None
    text = str(error)
    summary = text.partition(_FRAME)[0]
    interruptions = sorted(set(_INTERRUPTIONS.findall(text)) - set(_INTERRUPTIONS.findall(summary)))
    if not interruptions and not _INTERRUPTIONS.search(summary) and "cancelled" not in summary:
        return None
    return QueryStoppedError(
        "the batch was interrupted: "
        + " ".join([f"{kind.__module__}.{kind.__name__}: {summary}", *interruptions])
    )
