"""The internals of PySpark that spark-eos uses: the JVM behind it, plans, and Connect's client."""

# All other modules use only the public API of PySpark, and py4j's exceptions. Any release of Spark
# may change the internals used here: tests/integration/spark/test_pyspark_internals.py shows what
# has moved, and MAINTAINING.md says what an upgrade takes.

import contextlib
import inspect
import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from py4j.clientserver import ClientServer
from pyspark import SparkContext
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_CONNECT_WORKER: Final = "SPARK_CONNECT_LOCAL_URL"
_QUERY_ID: Final = "sql.streaming.queryId"
_ASYNCHRONOUS: Final = "AsyncProgressTrackingMicroBatchExecution"
# Settings that limit how much Spark prints of a plan.
_PRINTED: Final = ("spark.sql.maxPlanStringLength", "spark.sql.debug.maxToStringFields")

ANY_SINK_ASYNCHRONOUS: Final = "_asyncProgressTrackingOverrideSinkSupportCheck"
"""The query option with which Spark's own tests let any sink track progress asynchronously."""


# Processes and sessions -----------------------------------------------------------------------


def is_connect(made: DataFrame | SparkSession) -> bool:
    """Return True if a DataFrame or session is Spark Connect's, without importing its client."""
    return type(made).__module__.startswith("pyspark.sql.connect.")


def started_by_submit() -> bool:
    return _SUBMITTED in os.environ


def in_connect_worker() -> bool:
    """Return True if a Spark Connect server started this process for a query's batches."""
    return _CONNECT_WORKER in os.environ


def existing_session() -> SparkSession | None:
    """Return the session that ``SparkSession.builder`` would return; None if it would make one."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    # Another thread may have made the session.
    last = SparkSession._instantiatedSession
    if last is None or last.sparkContext._jsc is None:
        return None
    return last


def threads_are_pinned() -> bool:
    """Return True if each Python thread has its own JVM thread, and so its own local properties."""
    return isinstance(SparkContext._gateway, ClientServer)


def cloned_session(session: SparkSession) -> SparkSession:
    return SparkSession(session.sparkContext, session._jsparkSession.cloneSession())


def release_connect_session(session: Any) -> None:
    """End a Connect session; ``stop`` would also change this process's environment."""
    client = session.client
    try:
        client.release_session()
    finally:
        client.close()


def shipped_python_files(context: SparkContext) -> list[str]:
    """Return the names of the archives that ``addPyFile`` added to the workers' path."""
    return list(context._python_includes or ())


def is_stopped(context: SparkContext) -> bool:
    return context._jsc is None or bool(context._jsc.sc().isStopped())


def stop_jvm(seconds: float) -> None:
    """End the JVM that this process started for Spark, and wait for its exit."""
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    # The JVM exits when its standard input is closed.
    gateway.proc.stdin.close()
    gateway.proc.wait(seconds)


def set_spark_log_level(level: str) -> str:
    """Set the level of the JVM's root logger; return the previous level, or "" without a JVM."""
    context: Any = SparkContext._active_spark_context
    if context is None:
        return ""
    root = context._jvm.org.apache.logging.log4j.LogManager.getRootLogger()
    before = str(root.getLevel().toString())
    context.setLogLevel(level)
    return before


# Newer versions of Spark need the time zone of timestamps.
_NEEDS_ZONE: Final = "timezone" in inspect.signature(to_arrow_schema).parameters


def arrow_schema(schema: T.StructType) -> Any:
    """Return the Arrow schema that Spark expects from ``mapInArrow`` for rows of a schema."""
    zone: dict[str, Any] = {"timezone": "UTC"} if _NEEDS_ZONE else {}
    return to_arrow_schema(schema, **zone)


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Keep this thread's calls to Spark out of the logs: py4j logs every call at level DEBUG."""
    this = threading.get_ident()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != this

    loggers = [logging.getLogger(f"py4j.{name}") for name in ("clientserver", "java_gateway")]
    for logger in loggers:
        logger.addFilter(others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(others)


# Java's classes -------------------------------------------------------------------------------


def java_packages(session: SparkSession) -> Any:
    """Return Java's packages as attributes, also for classes of Hadoop and Parquet."""
    return session.sparkContext._jvm


def hadoop_configuration(session: SparkSession) -> Any:
    jvm_session: Any = session._jsparkSession
    return jvm_session.sessionState().newHadoopConf()


# Streaming queries in the JVM -----------------------------------------------------------------


def query_of_thread(session: SparkSession) -> str:
    """Return the id of the query whose batch this thread runs; "" outside of a batch."""
    return session.sparkContext.getLocalProperty(_QUERY_ID) or ""


class RunningBatch:
    """The offsets of the batch that a query runs, each as its source's JSON."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.batch_id = int(context.batchId())

    def starts(self) -> list[str]:
        return _texts(self._context.startOffsets())

    def ends(self) -> list[str]:
        return _texts(self._context.endOffsets())


class Execution:
    """Spark's ``StreamExecution``: an active query in the JVM, for which there is no public API."""

    def __init__(self, execution: Any) -> None:
        self._execution = execution

    @classmethod
    def of(cls, session: SparkSession, query_id: str) -> "Execution | None":
        """Return an active query's execution; None if it is not active, or its id is ""."""
        if not query_id:
            return None
        jvm_session: Any = session._jsparkSession
        active = jvm_session.sharedState().activeStreamingQueries()
        query = active.get(java_packages(session).java.util.UUID.fromString(query_id))
        return None if query is None else cls(query)

    @property
    def run_id(self) -> str:
        """The id of the query's run; each start gets a new id."""
        return str(self._execution.runId().toString())

    @property
    def is_asynchronous(self) -> bool:
        """True if the query tracks its progress asynchronously, however that was requested."""
        return str(self._execution.getClass().getSimpleName()) == _ASYNCHRONOUS

    def running_batch(self) -> RunningBatch:
        return RunningBatch(self._execution.getLatestExecutionContext())

    def sources(self, options: Iterable[str]) -> list["StreamSource"]:
        return _leaves(self._execution.analyzedPlan(), options)

    def batch_rows(self) -> tuple[int, int]:
        rows = self._execution.lastExecution().toRdd()
        return int(rows.getNumPartitions()), int(rows.id())


def _texts(progress: Any) -> list[str]:
    offsets = progress.valuesIterator()
    sources = []
    while offsets.hasNext():
        sources.append(str(offsets.next().json()))
    return sources


def plans_text(frame: DataFrame) -> str:
    """Return what ``DataFrame.explain(extended=True)`` would print to the shared stdout."""
    if is_connect(frame):
        made: Any = frame
        return str(made._explain_string(extended=True))
    java = java_packages(frame.sparkSession).org.apache.spark.sql.api.python
    # Spark looks for streams in the plan as given, in which a SQL query's streams are still only
    # names. Below a selection, the plan is already analyzed.
    execution: Any = frame.select("*")._jdf.queryExecution()
    with _printing_all(frame.sparkSession):
        return str(java.PythonSQLUtils.explainString(execution, "extended"))


@contextlib.contextmanager
def _printing_all(session: SparkSession) -> Iterator[None]:
    """Make Spark print whole plans in this thread, whatever the user's settings are."""
    sessions = java_packages(session).org.apache.spark.sql.classic.SparkSession
    printing: Any = session._jsparkSession.cloneSession()
    for name in _PRINTED:
        printing.conf().set(name, str(2**30))
    before = sessions.getActiveSession()
    sessions.setActiveSession(printing)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


class PlanReader:
    """Reads the plans of classic Spark's jobs; made once for all jobs of a run."""

    def __init__(self, session: SparkSession) -> None:
        # Look classes up once: each part of a Java class's name is a call to the JVM.
        java = java_packages(session)
        self._info = java.org.apache.spark.sql.execution.SparkPlanInfo
        # JSON takes one call instead of several for each operator.
        self._mapper = java.com.fasterxml.jackson.databind.ObjectMapper()
        self._mapper.registerModule(java.com.fasterxml.jackson.module.scala.DefaultScalaModule())

    def plan_and_lineage(self, frame: DataFrame) -> tuple[Any, str]:
        """Return a job's physical plan, and the lineage of the RDDs that will run."""
        # Use the tree that Spark's user interface shows, with nodeName, simpleString and children:
        # a printed plan has limits, and a text in it may look like an operator.
        execution: Any = frame._jdf.queryExecution()
        # Read the plan before making the RDDs, because making them changes the plan.
        tree = self._info.fromSparkPlan(execution.executedPlan())
        lineage = str(execution.toRdd().toDebugString())
        return json.loads(self._mapper.writeValueAsString(tree)), lineage


def task_count(frame: DataFrame) -> int:
    """Return how many tasks run a frame without a shuffle."""
    return int(frame._jdf.queryExecution().toRdd().getNumPartitions())


def is_observed(observation: Observation) -> bool:
    """Return True if an observation has its metrics; its ``get`` may wait for them forever."""
    future: Any = observation._jo
    return bool(future.future().isCompleted())


# Plans of streams -----------------------------------------------------------------------------


class StreamSource(NamedTuple):
    """A streaming source in a plan: its format, and the requested options by lower-case name."""

    format: str
    options: Mapping[str, str]


def stream_relations(frame: DataFrame, options: Iterable[str]) -> list[StreamSource]:
    """Return the streaming sources of a DataFrame, once for each time that its plan reads them."""
    if is_connect(frame):
        reads = messages(connect_plan(frame), "Read")
        return [_of_read(read, options) for read in reads if read.is_streaming]
    jvm_frame: Any = frame._jdf
    return _leaves(jvm_frame.queryExecution().analyzed(), options)


def _leaves(plan: Any, options: Iterable[str]) -> list[StreamSource]:
    leaves = plan.collectLeaves()
    relations = (leaves.apply(index) for index in range(leaves.size()))
    streams = (
        (leaf, str(leaf.getClass().getSimpleName())) for leaf in relations if leaf.isStreaming()
    )
    # A common table expression (WITH) is a leaf where it is used, in addition to the leaves of its
    # definition.
    return [_of_leaf(leaf, kind, options) for leaf, kind in streams if kind != "CTERelationRef"]


def _of_leaf(leaf: Any, kind: str, names: Iterable[str]) -> StreamSource:
    if kind == "StreamingRelation":
        # A source of Spark's first data source API, such as files.
        return StreamSource(str(leaf.dataSource().className()).lower(), {})
    if kind != "StreamingRelationV2":
        return StreamSource(kind, {})
    given = leaf.extraOptions()
    options = {name: given.get(name) for name in names}
    return StreamSource(
        str(leaf.sourceName()).lower(),
        {name: str(text) for name, text in options.items() if text is not None},
    )


def _of_read(read: Any, names: Iterable[str]) -> StreamSource:
    if read.WhichOneof("read_type") != "data_source":
        return StreamSource("a table", {})
    given = {name.lower(): text for name, text in read.data_source.options.items()}
    options = {name: given[name] for name in names if name in given}
    return StreamSource(read.data_source.format.lower(), options)


def connect_plan(frame: Any) -> Any:
    """Return the plan of a Spark Connect DataFrame as Protocol Buffers, as its client sends it."""
    return frame._plan.plan(frame.sparkSession.client)


def messages(message: Any, name: str) -> Iterator[Any]:
    """Yield every message of a given type within a Protocol Buffers message."""
    if message.DESCRIPTOR.name == name:
        yield message
    for field, value in message.ListFields():
        kind = field.message_type
        if kind is None or kind.GetOptions().map_entry:
            continue
        for part in [value] if hasattr(value, "DESCRIPTOR") else value:
            yield from messages(part, name)


def remote_relations(frame: Any) -> list[str]:
    """Return the ids of the server's relations that a Spark Connect DataFrame reads."""
    # A micro-batch has its own id; the result of checkpoint or localCheckpoint has a different id.
    relations = messages(connect_plan(frame), "CachedRemoteRelation")
    return [part.relation_id for part in relations]
