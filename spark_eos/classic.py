"""Classic Spark: the sink runs in the driver's process, with Spark's JVM behind py4j."""

import contextlib
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession

from spark_eos.checkpoint import OffsetLog
from spark_eos.errors import CheckpointError, QueryStoppedError, UnsupportedPipelineError
from spark_eos.job_description import described
from spark_eos.lifetime import activity, leave_at_exit
from spark_eos.run import QueryRun
from spark_eos.stopping import told_briefly

_QUERY_ID: Final = "sql.streaming.queryId"
_RUN_ID: Final = "spark.jobGroup.id"


class HadoopFiles:
    """A checkpoint's files on any file system that Spark knows, read as Spark itself reads them.

    Args:
        spark: a session.
        location: the checkpoint's location, as given to Spark.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._io = jvm.org.apache.commons.io.IOUtils
        self._base = self._path(location)
        session: Any = spark._jsparkSession
        self._fs = self._base.getFileSystem(session.sessionState().newHadoopConf())

    def read(self, path: str) -> str | None:
        """A file's text, or None if there is no such file."""
        full = self._path(self._base, path)
        if not self._fs.exists(full):
            return None
        stream = self._fs.open(full)
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def names(self, path: str) -> list[str]:
        """Names in a directory that are not hidden; none if there is no such directory."""
        full = self._path(self._base, path)
        if not self._fs.exists(full):
            return []
        found = [status.getPath().getName() for status in self._fs.listStatus(full)]
        return sorted(name for name in found if not name.startswith((".", "_")))


class ClassicSurroundings:
    """See `spark_eos.surroundings.Surroundings`.

    Args:
        frame: the run's first batch.
        location: the checkpoint's location, as given to Spark.
        spark: the session that the query was started from, if it is known.

    Raises:
        CheckpointError: the checkpoint is missing, or another query's.
    """

    # stop() waits for the sink, and the next start ends what killed tasks have left.
    tasks_outlive_stop = 0.0

    def __init__(self, frame: DataFrame, location: str, spark: SparkSession | None) -> None:
        self._session = frame.sparkSession
        self._query_id = self._property(_QUERY_ID)
        self.run_id = self._property(_RUN_ID)
        self.offset_log = OffsetLog(HadoopFiles(self._session, location))
        found = self.offset_log.query_id()
        if self._query_id and found != self._query_id:
            raise CheckpointError(
                f"checkpoint_location {location!r} belongs to query {found}, this is query "
                f"{self._query_id}: the sink and the query need the same checkpoint; start the "
                "query from sink.write(...), which sets it"
            )
        # The batch's session is a clone of the user's, and knows nothing of the query.
        self.active = activity(spark, self._query_id, self.run_id)

    def _property(self, name: str) -> str:
        return self._session.sparkContext.getLocalProperty(name) or ""

    def hold(self, frame: DataFrame) -> bool:  # noqa: ARG002 - the thread tells
        """Whether a batch belongs to this run."""
        return self._property(_RUN_ID) == self.run_id

    def end_with(self, run: QueryRun) -> None:
        """Lets the members leave when the interpreter exits."""
        leave_at_exit(run)

    def batch(self) -> contextlib.AbstractContextManager[None]:
        """Nothing to do: Spark's ``stop()`` interrupts jobs and waits for what else is done."""
        return contextlib.nullcontext()

    def check_batch(self, frame: DataFrame, source_partition_count: int) -> None:
        """Refuses a micro-batch whose rows have left their source partitions on the way.

        Inside foreachBatch the plan of what was done before shows only in the lineage of its RDD.

        Raises:
            UnsupportedPipelineError: as said.
        """
        query: Any = frame._jdf.queryExecution()  # there is no public way to ask
        rdd = query.toRdd()
        lineage = rdd.toDebugString()
        for word in ("ShuffledRowRDD", "StateStore"):
            if word in lineage:
                raise UnsupportedPipelineError(
                    f"the batch was shuffled or holds state ({word} in its lineage): exactly-once "
                    "needs the rows of a source partition to stay in one task in offset order. "
                    "Start the query from sink.write(...), which names the operator"
                )
        found = rdd.getNumPartitions()
        if found > source_partition_count:
            raise UnsupportedPipelineError(
                f"the batch has {found} Spark partitions for {source_partition_count} source "
                "partitions, so rows of a source partition are split over tasks: leave out "
                "repartition and the like"
            )

    def cores(self) -> int:
        """Spark's default parallelism now, since executors come and go."""
        return self._session.sparkContext.defaultParallelism

    def collect(self, frame: DataFrame, description: str) -> list[Row]:
        """Runs a job; Spark's ``stop()`` interrupts it."""
        with described(self._session.sparkContext, description):
            return frame.collect()

    def stopped(self, error: BaseException) -> QueryStoppedError | None:
        """What to raise in place of the error that an interrupted job ends with."""
        try:
            query = self._session.streams.get(self._query_id)
            active = query is not None and query.isActive
        except Exception:  # noqa: BLE001 - however the JVM has gone, the query has with it
            active = False
        return None if active else told_briefly(error)
