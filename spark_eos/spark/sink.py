"""`ExactlyOnceSink`: the front of spark-eos for foreachBatch."""

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.client.checks import check_positive, check_text
from spark_eos.client.settings import ClientSettings
from spark_eos.driver import preflight
from spark_eos.driver.offset_renewal import end_renewal, renew_hourly
from spark_eos.driver.query_run import QueryRun
from spark_eos.errors import UnsupportedPipelineError
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline
from spark_eos.kafka.group_members import own_group
from spark_eos.observability.on_batch import OnBatch, announce, as_observers
from spark_eos.spark.batch_job import BatchJobs
from spark_eos.spark.classic import ClassicRuntime
from spark_eos.spark.columns import check_columns
from spark_eos.spark.connect import ConnectRuntime, is_connect
from spark_eos.spark.narrow_plan import check_stream, remote_relations
from spark_eos.spark.runtime import QueryRuntime
from spark_eos.spark.source import named_topics, read_from_offsets, source_partitions

logger = logging.getLogger(__name__)


class ExactlyOnceSink:
    """Writes a streaming query's rows to Kafka exactly once, together with its source offsets.

    One sink serves one query. Each Spark task writes in Kafka transactions and commits, inside
    them, the offsets of the source records it consumed (TxnOffsetCommit, by topic id where the
    brokers speak version 6, KIP-1319), as a member of the consumer group to which the partition
    is assigned (KIP-848, KAFKA-20191).
    Consumers of the output see each record once if they read with
    ``isolation.level=read_committed``.

    Args:
        kafka: client settings in librdkafka's names, for all clients; ``bootstrap.servers`` is
            required.
        group_id: the consumer group whose offsets tell the query's progress. No other consumer
            may use it.
        topic: default target topic; a ``topic`` column overrides it row by row. None: every row
            has its own.
        checkpoint_location: the streaming query's checkpoint, on any file system Spark knows.
        max_members: maximum number of static group members, among which the source partitions
            are divided. One is enough for the guarantee, and quickest: a transaction commits
            offsets once for each member that it holds partitions of.
        transactional_id_prefix: what transactional ids begin with; for ACLs.
        max_transaction_records: rows after which a task commits its transaction and begins another.
        max_transaction_bytes: the same, in bytes of keys, values and headers.
        max_transaction_ms: the same, in milliseconds; below transaction_timeout_ms.
        transaction_timeout_ms: milliseconds after which the brokers abort a transaction; at most
            their transaction.max.timeout.ms.
        connect_timeout_ms: milliseconds allowed to reach the cluster and to start a producer.
        max_block_ms: milliseconds to wait, while the query runs, for a topic that does not exist:
            one that a row names, or a source topic. Kafka's ``max.block.ms`` (KIP-1319).
        metadata_max_idle_ms: milliseconds after which a topic that was not written to is
            forgotten, to be looked up again before its next use. Kafka's
            ``metadata.max.idle.ms`` (KIP-1319).
        group_timeout_ms: milliseconds allowed for joining the group and for each call to it.
        fail_on_data_loss: whether the query ends when source records were deleted before they were
            read, by retention say. If not, each such gap is logged and reported
            (`BatchReport.lost`).
        max_rounds: maximum number of Spark jobs for one batch, the first included; further ones
            write what a failed task left.
        worker_directory: directory, on each host, for the host's id and the locks of
            transactional ids; by default one below the temporary directory.
        on_batch: called with each `BatchReport`, after everything is committed, or several of such
            functions: on the driver, with Spark Connect copies of them in the process that the
            server starts for the query. What one raises is logged, and the query goes on.

    Raises:
        ConfigurationError: an option can't be used as given.
    """

    def __init__(
        self,
        *,
        kafka: Mapping[str, Any],
        group_id: str,
        checkpoint_location: str,
        topic: str | None = None,
        max_members: int = 1,
        transactional_id_prefix: str = "spark-eos",
        max_transaction_records: int = 100_000,
        max_transaction_bytes: int = 64 << 20,
        max_transaction_ms: int = 10_000,
        transaction_timeout_ms: int = 60_000,
        connect_timeout_ms: int = 30_000,
        max_block_ms: int = 60_000,
        metadata_max_idle_ms: int = 300_000,
        group_timeout_ms: int = 60_000,
        max_rounds: int = 4,
        fail_on_data_loss: bool = True,
        worker_directory: str | None = None,
        on_batch: OnBatch | Iterable[OnBatch] | None = None,
    ) -> None:
        check_text("checkpoint_location", checkpoint_location)
        check_positive(
            max_members=max_members, group_timeout_ms=group_timeout_ms, max_rounds=max_rounds
        )
        self._settings = WriterSettings(
            client=ClientSettings(kafka).checked_by_librdkafka(),
            group_id=group_id,
            topic=topic,
            transactional_id_prefix=transactional_id_prefix,
            max_transaction_records=max_transaction_records,
            max_transaction_bytes=max_transaction_bytes,
            max_transaction_ms=max_transaction_ms,
            transaction_timeout_ms=transaction_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            max_block_ms=max_block_ms,
            metadata_max_idle_ms=metadata_max_idle_ms,
            worker_directory=worker_directory,
            fail_on_data_loss=fail_on_data_loss,
        )
        self._checkpoint_location = checkpoint_location
        self._max_members = max_members
        self._max_rounds = max_rounds
        self._group_timeout_ms = group_timeout_ms
        self._observers = as_observers(on_batch)
        self._selections: list[dict[str, str]] = []
        self._spark: SparkSession | None = None
        self._checked = False
        self._query: StreamingQuery | None = None
        self._run: QueryRun | None = None
        self._jobs: BatchJobs | None = None
        self._runtime: QueryRuntime | None = None
        self._last_batch = -1
        self._prepared_ms = _now_ms()
        self._batch_relation: str | None = None

    def __repr__(self) -> str:
        settings = self._settings
        return (
            f"ExactlyOnceSink(group_id={settings.group_id!r}, topic={settings.topic!r}, "
            f"kafka={settings.client!r})"
        )

    # Reading ----------------------------------------------------------------------------------

    def read(
        self,
        spark: SparkSession,
        *,
        subscribe: str | None = None,
        subscribePattern: str | None = None,  # noqa: N803 - Spark's name for it
        assign: str | None = None,
        starting_offsets: str = "earliest",
        include_headers: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """Reads source topics as a streaming DataFrame, from the group's committed offsets on.

        Args:
            spark: the session, classic or of Spark Connect.
            subscribe: topic names, joined by commas.
            subscribePattern: a regular expression that whole topic names match.
            assign: JSON of topics and partitions, such as ``{"orders": [0, 1]}``.
            starting_offsets: where to start in partitions for which the group has no committed
                offset: ``earliest`` or ``latest``. Spark asks only when a query has no
                checkpoint yet.
            include_headers: whether to read the records' headers too.
            options: further options of Spark's Kafka source, such as ``maxOffsetsPerTrigger``.

        Returns:
            The columns of Spark's Kafka source, and ``source``, a struct of ``topic``,
            ``partition`` and ``offset`` that `write` needs unchanged.

        Raises:
            ConfigurationError: not exactly one of subscribe, subscribePattern and assign, or
                nothing by which the source could log in where ``kafka`` has ``oauth_cb``.
            AuthenticationError: a broker and this client do not accept one another.
            UnsupportedPipelineError: an option would split or reorder source partitions.
            TopicNotFoundError: a source topic does not exist.
            AuthorizationError: ACLs that the query needs are missing; see ``spark-eos acls``.
        """
        given = {"subscribe": subscribe, "subscribePattern": subscribePattern, "assign": assign}
        selection = {name: text for name, text in given.items() if text is not None}

        def check(wire: Wire) -> None:
            preflight.check_brokers(wire, self._settings, self._deadline())
            # Before anything is looked up, for an error that names all that is missing.
            preflight.check_authorization(
                wire, self._settings, named_topics(selection), self._deadline()
            )

        frame = read_from_offsets(
            spark,
            self._settings.client,
            self._settings.group_id,
            selection,
            self._deadline(),
            starting_offsets=starting_offsets,
            include_headers=include_headers,
            options=options,
            fail_on_data_loss=self._settings.fail_on_data_loss,
            check=check,
        )
        self._selections.append(selection)
        self._spark = spark
        return frame

    # Writing ----------------------------------------------------------------------------------

    def write(self, frame: DataFrame) -> DataStreamWriter:
        """Checks a streaming DataFrame and returns the writer to start it with.

        Columns: ``value`` (binary or string; null is a tombstone), ``source`` from `read`, and
        optionally ``key`` (binary or string), ``headers`` (array of struct<key, value>),
        ``topic``, ``partition`` and ``timestamp``. Others are ignored.

        Args:
            frame: the streaming DataFrame.

        Returns:
            A DataStreamWriter with the sink and the checkpoint set; choose a trigger and start.

        Raises:
            UnsupportedPipelineError: a column or an operator of the plan stands in the way.
            UnsupportedBrokerError, TopicNotFoundError, ForeignMemberError, ConfigurationError,
            AuthorizationError: the cluster can't be written to exactly once as things are.
            AuthenticationError: a broker and this client do not accept one another.
        """
        check_columns(frame.schema, self._settings.topic)
        check_stream(frame, lineage_follows=not is_connect(frame))
        self._checked = True
        self._spark = frame.sparkSession
        self._check_cluster()
        self._prepared_ms = _now_ms()
        writer = frame.writeStream
        if is_connect(frame):
            self._let_batches_be_noted(writer)
        writer = writer.foreachBatch(self)
        self._let_one_run(writer)
        return writer.option("checkpointLocation", self._checkpoint_location)

    def _let_batches_be_noted(self, writer: DataStreamWriter) -> None:
        """Has whatever function the writer is given called with batches that the sink has seen."""
        choose = writer.foreachBatch

        @functools.wraps(choose)
        def choose_noting(function: Callable[[DataFrame, int], None]) -> DataStreamWriter:
            return choose(_Noting(self, function))

        vars(writer)["foreachBatch"] = choose_noting

    def _let_one_run(self, writer: DataStreamWriter) -> None:
        """Lets the writer start its query only if no other one of the sink is active.

        Spark takes a second query on a checkpoint for a new run of the first, which it stops.
        """
        start = writer.start

        @functools.wraps(start)
        def start_alone(*args: Any, **options: Any) -> StreamingQuery:
            if self._query is not None and _is_active(self._query):
                raise UnsupportedPipelineError(
                    f"the sink's query {self._query.id} is active, and a sink serves one query: "
                    "stop it first, or give the other query a sink of its own, with a group_id "
                    "and a checkpoint_location of its own"
                )
            self._query = start(*args, **options)
            return self._query

        vars(writer)["start"] = start_alone

    def _check_cluster(self) -> None:
        settings = self._settings
        with contextlib.closing(Wire(settings.client)) as wire:
            sources: set[str] = set()
            for selection in self._selections:
                sources |= source_partitions(wire, selection, self._deadline())[0].keys()
            preflight.check_cluster(wire, settings, sources, self._deadline())
            own_group(wire, settings.group_id, self._deadline())

    def _deadline(self) -> Deadline:
        return Deadline(self._settings.connect_timeout_ms / 1000, "connect_timeout_ms")

    # One batch --------------------------------------------------------------------------------

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Writes one micro-batch; the function that foreachBatch calls.

        Raises:
            SparkEosError: the batch is not written; Spark stops the query with this as reason.
        """
        called_ms = _now_ms()
        run, jobs, runtime = self._run, self._jobs, self._runtime
        if run is None or jobs is None or runtime is None or not runtime.hold(frame):
            run, jobs, runtime = self._start_run(frame)
        elif batch_id <= self._last_batch:
            raise UnsupportedPipelineError(
                f"the sink was called a second time for batch {batch_id}: the first call has "
                "committed the batch's offsets, and these rows are not written. Call it once; "
                "several rows of one record are made in one select, by "
                "explode(array(struct(...), struct(...)))"
            )
        if isinstance(runtime, ConnectRuntime):
            runtime.batch_relation = self._batch_relation
        # A later run of this sink may find this batch begun.
        self._prepared_ms = called_ms
        try:
            with runtime.batch():
                report = run.process(batch_id, functools.partial(jobs.run, frame))
        except BaseException as error:
            # Spark ends the query; whoever writes next takes the members over or joins anew.
            stopped = runtime.stopped(error)
            outliving = runtime.tasks_outlive_stop if stopped is not None else 0.0
            self._end_run(outliving, aside=runtime.stop_waits)
            if stopped is not None:
                logger.info("the query was stopped in batch %d", batch_id, exc_info=error)
                raise stopped from None
            raise
        self._last_batch = batch_id
        announce(report, self._observers)

    def _start_run(self, frame: DataFrame) -> tuple[QueryRun, BatchJobs, QueryRuntime]:
        runtime = self._runtime_of(frame)
        if self._run is not None:
            self._run.abandon()
            self._run = None
        jobs = BatchJobs(frame, self._settings.topic, runtime)
        run = QueryRun(
            runtime.run_id,
            Wire(self._settings.client),
            self._settings,
            runtime.offset_log,
            max_members=self._max_members,
            max_rounds=self._max_rounds,
            group_timeout_ms=self._group_timeout_ms,
            watch=runtime.active,
            prepared_ms=self._prepared_ms,
        )
        runtime.end_with(run)
        self._run, self._jobs, self._runtime = run, jobs, runtime
        self._last_batch = -1
        return run, jobs, runtime

    def _runtime_of(self, frame: DataFrame) -> QueryRuntime:
        if not self._checked:
            raise UnsupportedPipelineError(
                "start the query from sink.write(...), which checks its plan; a function of your "
                "own is set by sink.write(...).foreachBatch(function)"
            )
        if is_connect(frame):
            spark = self._spark or frame.sparkSession
            return ConnectRuntime(self._checkpoint_location, spark)
        assert self._spark is not None  # noqa: S101 - since write was called in this process
        return ClassicRuntime(frame, self._checkpoint_location, self._spark)

    def close(self) -> None:
        """Lets the group's members leave now; for use after the query has been stopped.

        Not needed: they leave by themselves about a second after the query's end, and when the
        driver exits. With Spark Connect it does nothing, since they are not the client's. May be
        called again.
        """
        end_renewal(self._settings.client, self._settings.group_id)
        self._end_run()

    def _end_run(self, tasks_outlive_stop: float = 0.0, *, aside: bool = False) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.leave(tasks_outlive_stop, aside=aside)

    def __getstate__(self) -> dict[str, Any]:
        # Spark Connect pickles the sink to where the batches run; a run lives only there. Of its
        # sessions a name is pickled, for the one that is active when the sink arrives.
        return {
            **self.__dict__,
            "_run": None,
            "_jobs": None,
            "_runtime": None,
            "_query": None,
            "_last_batch": -1,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        # There, on the host of Spark's driver, the query has yet to begin a batch.
        self.__dict__.update(state, _prepared_ms=_now_ms())
        settings = self._settings
        renew_hourly(settings.client, settings.group_id, settings.connect_timeout_ms / 1000)


class _Noting:
    """A function for foreachBatch on Spark Connect, before which the sink sees the batch itself.

    Pickled as one with the sink, so that both are in one process then.
    """

    def __init__(self, sink: ExactlyOnceSink, function: Callable[[DataFrame, int], None]) -> None:
        self._sink = sink
        self._function = function

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        (self._sink._batch_relation,) = remote_relations(frame)  # noqa: SLF001 - one with the sink
        self._function(frame, batch_id)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _is_active(query: StreamingQuery) -> bool:
    try:
        return query.isActive
    except Exception:  # noqa: BLE001 - however its Spark has gone, the query has with it
        return False
