"""Classic Spark: the sink runs in the driver's process and calls Spark's JVM through py4j."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

from pyspark import SparkContext
from pyspark.sql import DataFrame, Observation, Row, SparkSession

from spark_eos import _pyspark_internals as internals
from spark_eos._batch.plan import BatchRange
from spark_eos._driver.checkpoint_marker import Files
from spark_eos._driver.offset_log import OffsetLog, fingerprint_of, parse_positions
from spark_eos._kafka.deadline import Deadline, RetriableError
from spark_eos._run.run import Run
from spark_eos._spark.dead_letter_columns import ERRORS_CARRIED
from spark_eos._spark.narrow_lineage import check_lineage
from spark_eos._spark.narrow_plan import check_batch_plan, operators_of_tree
from spark_eos._spark.runtime import activity, leave_at_exit
from spark_eos._spark.stopping import as_query_stopped_error
from spark_eos._spark.stream_sources import sources_of_query
from spark_eos.errors import CheckpointError, QueryStoppedError, UnsupportedPipelineError

# Seconds to wait for an observation; Spark drops events that its listeners are too slow for.
_OBSERVED: Final = 60.0
# More Parquet files than these are counted sooner by tasks. Some are read at a time
# (parquet.metadata.read.parallelism, 5), and calls from Python to the JVM take their time too.
_MOST_FILES: Final = 16
_DESCRIPTION: Final = "spark.job.description"


class HadoopFiles:
    """A checkpoint's files on any file system that Spark knows, read as Spark itself reads them."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        java = internals.java_packages(spark)
        self._path = java.org.apache.hadoop.fs.Path
        self._io = java.org.apache.commons.io.IOUtils
        self._base = self._path(location)
        self._fs = self._base.getFileSystem(internals.hadoop_configuration(spark))

    def read(self, path: str) -> str | None:
        """A file's text, or None if the file does not exist."""
        full = self._path(self._base, path)
        if not self._fs.exists(full):
            return None
        stream = self._fs.open(full)
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Creates a directory with one file of one line, at once or not at all."""
        self._create(f"{path}/part-0.txt", f"{text}\n")

    def copy_file(self, source: str, target: str) -> None:
        """Creates a file with the text of another one, at once or not at all."""
        text = self.read(source)
        if text is None:
            raise CheckpointError(f"checkpoint_location {self.location!r}: {source} is gone")
        self._create(target, text)

    def _create(self, path: str, text: str) -> None:
        target = self._path(self._base, path)
        # Hidden, so that nobody reads it.
        aside = self._path(target.getParent(), f".{target.getName()}.aside")
        stream = self._fs.create(aside)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        if not self._fs.rename(aside, target):
            raise CheckpointError(
                f"checkpoint_location {self.location!r}: {path} can't be created there; "
                "look whether the file exists, and who may write in its directory"
            )

    def delete(self, path: str) -> None:
        """Deletes a directory with everything in it, if it exists."""
        self._fs.delete(self._path(self._base, path), True)  # noqa: FBT003 - recursively

    def names(self, path: str) -> list[str]:
        """Names in a directory that are not hidden; empty if the directory does not exist."""
        full = self._path(self._base, path)
        if not self._fs.exists(full):
            return []
        found = [status.getPath().getName() for status in self._fs.listStatus(full)]
        return sorted(name for name in found if not name.startswith((".", "_")))


class ExecutionLog(OffsetLog):
    """Batch ranges from the query's execution, which also determines the batch's rows.

    The checkpoint's offset log may be another driver's, on a file system that lets two drivers
    create the same file.
    """

    def __init__(self, files: Files, query: internals.Execution) -> None:
        super().__init__(files)
        self._query = query

    def batch_range(self, batch_id: int) -> BatchRange:
        """The offset range of the current batch."""
        running = self._running(batch_id)
        where = f"batch {batch_id}"
        ends = parse_positions(running.ends(), where)
        # Spark reports no start of the first batch that it knows of; the checkpoint has it.
        starts = parse_positions(running.starts(), where) or self.initial()
        return BatchRange(batch_id, starts, ends)

    def fingerprint(self, batch_id: int) -> str:
        """A fingerprint of the current batch as Spark runs it; see `OffsetLog.fingerprint`."""
        return fingerprint_of(self.began_ms(batch_id), self._running(batch_id).ends())

    def _running(self, batch_id: int) -> internals.RunningBatch:
        running = self._query.running_batch()
        if running.batch_id != batch_id:
            raise CheckpointError(
                f"the sink was called for batch {batch_id} while the query runs batch "
                f"{running.batch_id}: call it in the foreachBatch function, with that batch"
            )
        return running


class ClassicRuntime:
    """Classic Spark as a `spark_eos._spark.runtime.QueryRuntime`."""

    # Spark cancels tasks and kills their workers spark.python.task.killTimeout (2 s) later.
    task_kill_grace_s = 5.0
    stop_waits = True

    def __init__(
        self,
        frame: DataFrame,
        location: str,
        spark: SparkSession,
        check_sources: Callable[[Sequence[internals.StreamSource]], None],
    ) -> None:
        # The batch's session is a clone of the user's, and does not know the query.
        self._session, self._of_query = frame.sparkSession, spark
        self._query_id = internals.query_of_thread(self._session)
        query = internals.Execution.of(self._session, self._query_id)
        if query is None:
            raise UnsupportedPipelineError(
                "the sink was called outside of a query: start one with sink.write(...).start()"
            )
        self._query = query
        self._plans = internals.PlanReader(self._session)
        self.run_id = query.run_id
        self.asynchronous = query.is_asynchronous
        self.files: Files = HadoopFiles(self._session, location)
        self.offset_log: OffsetLog = ExecutionLog(self.files, query)
        found = self.offset_log.query_id()
        if found != self._query_id:
            raise CheckpointError(
                f"checkpoint_location {location!r} belongs to query {found}, but this is query "
                f"{self._query_id}: the sink and the query need the same checkpoint; start the "
                "query from sink.write(...), which sets it"
            )
        self.active = activity(spark, self._query_id, self.run_id)
        sources = sources_of_query(query)
        check_sources(sources)
        self._sources = len(sources)

    def hold(self, frame: DataFrame) -> bool:  # noqa: ARG002 - the thread's properties tell
        """Whether a batch belongs to this run."""
        query_id = internals.query_of_thread(self._session)
        found = internals.Execution.of(self._session, query_id)
        return found is not None and found.run_id == self.run_id

    def end_with(self, run: Run) -> None:
        """Makes the members leave when the interpreter exits."""
        leave_at_exit(run)

    def batch(self, relation: str | None) -> contextlib.AbstractContextManager[None]:
        """Does nothing: Spark's ``stop()`` interrupts jobs and waits for everything else."""
        del relation
        return contextlib.nullcontext()

    def check_batch(self, frame: DataFrame, job: DataFrame, batch: BatchRange) -> None:  # noqa: ARG002
        """Refuses a job whose rows may have left their source partitions.

        Only RDDs show what a batch is made of, and only the plan what is done in one partition. The
        RDDs created by this check are those that run, since Spark keeps them with the job's plan.
        """
        found, rows = self._query.batch_rows()
        moved = sum(batch.starts.get(partition) != end for partition, end in batch.ends.items())
        # Without rows, coalesce makes one partition.
        if found > max(1, moved):
            raise UnsupportedPipelineError(
                f"the batch has {found} Spark partitions for {moved} source partitions with "
                "records, so rows of a source partition are split over tasks: leave out "
                "repartition, minPartitions and the like"
            )
        plan, lineage = self._plans.plan_and_lineage(job)
        check_lineage(lineage, rows, self._sources)
        check_batch_plan(operators_of_tree(plan))

    def cores(self) -> int:
        """Spark's default parallelism, asked each time since executors come and go."""
        return self._session.sparkContext.defaultParallelism

    def tasks(self, job: DataFrame) -> int | None:
        """Number of a job's tasks: PySpark takes a connection's end for the end of rows."""
        return internals.task_count(job)

    def collect(
        self, frame: DataFrame, description: str, *, errors_carried: bool = False
    ) -> list[Row]:
        """Runs a job; Spark's ``stop()`` interrupts it."""
        with contextlib.ExitStack() as properties:
            context = self._session.sparkContext
            properties.enter_context(described(context, description))
            if errors_carried:
                properties.enter_context(local_property(context, ERRORS_CARRIED, "true"))
            return frame.collect()

    def run_job(
        self,
        session: SparkSession,  # noqa: ARG002 - they share one SparkContext
        action: Callable[[], object],
        description: str,
    ) -> None:
        """Runs a job; Spark's ``stop()`` interrupts it."""
        with described(self._session.sparkContext, description):
            action()

    def observed(self, observation: Observation) -> dict[str, Any]:
        """An observation's metrics, for which Spark's own ``get`` waits without a limit."""
        deadline = Deadline(_OBSERVED, "spark.scheduler.listenerbus.eventqueue.capacity")

        def attempt() -> dict[str, Any]:
            if not internals.is_observed(observation):
                raise RetriableError("Spark's listeners have not seen the job's end yet")
            return observation.get

        return deadline.attempts("counting staged rows", pause=0.002)(attempt)

    def rows_of_footers(self, path: str) -> int | None:
        """How many rows a directory's Parquet files have, if these are few: jobs take longer."""
        return footer_rows(self._session, path)

    def another_session(self, session: SparkSession) -> SparkSession:
        """A session with settings of its own, which are at first those of a given one."""
        # newSession would have none of them, neither credentials of the file system.
        return internals.cloned_session(session)

    def end_session(self, session: SparkSession) -> None:
        """Does nothing: stopping a classic session stops Spark."""

    def stopped(self, error: BaseException) -> QueryStoppedError | None:
        """The error to raise for an interrupted job; None if the query was not stopped."""
        try:
            query = self._of_query.streams.get(self._query_id)
            stopped = internals.is_stopped(self._session.sparkContext)
            active = query is not None and query.isActive and not stopped
        except Exception:  # noqa: BLE001 - however the JVM has ended, so has the query
            active = False
        return None if active else as_query_stopped_error(error)


@contextmanager
def described(context: SparkContext, text: str) -> Iterator[None]:
    """Puts a text before Spark's own description of the jobs that this thread starts.

    Spark's description of a streaming query's jobs has the query's name and ids. It is restored
    at the end of the block.
    """
    before = context.getLocalProperty(_DESCRIPTION)
    whole = text if before is None else f"{text}\n{before}"
    with local_property(context, _DESCRIPTION, whole, before):
        yield


@contextmanager
def local_property(
    context: SparkContext, name: str, text: str, before: str | None = None
) -> Iterator[None]:
    """Gives the jobs that this thread starts a property, which is ``before`` again at the end."""
    context.setLocalProperty(name, text)
    try:
        yield
    finally:
        # None removes it.
        context.setLocalProperty(name, cast("str", before))


def footer_rows(session: SparkSession, path: str) -> int | None:
    """Counts the rows of a directory's Parquet files with Hadoop's and Parquet's own readers."""
    java = internals.java_packages(session)
    conf = internals.hadoop_configuration(session)
    directory = java.org.apache.hadoop.fs.Path(path)
    file_system = directory.getFileSystem(conf)
    if not file_system.exists(directory):
        return 0
    # Few calls, each of which takes its time. Like Spark, this leaves out names that begin with
    # "_" or ".".
    if len(file_system.listStatus(directory)) > _MOST_FILES:
        return None
    footers = java.org.apache.parquet.hadoop.ParquetFileReader.readFooters(conf, directory)
    blocks = [footer.getParquetMetadata().getBlocks() for footer in _items(footers)]
    return sum(int(block.getRowCount()) for found in blocks for block in _items(found))


def _items(found: Any) -> Iterator[Any]:
    """A Java list's items by index: the end of its iterator costs py4j a hundred calls."""
    for index in range(found.size()):
        yield found.get(index)
