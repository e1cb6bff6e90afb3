"""`ExactlyOnceSink`: exactly-once writing through foreachBatch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_eos._checks import preflight
from spark_eos._checks.start import Start
from spark_eos._client.argument_types import typed
from spark_eos._client.checks import check_text
from spark_eos._client.locations import without_credentials
from spark_eos._client.settings import ClientSettings
from spark_eos._client.tables import FittingTable, as_html
from spark_eos._delivery.base import SinkQuery
from spark_eos._delivery.choice import (
    AUTO,
    check_delivery,
    query_of_stream,
)
from spark_eos._kafka.cluster import TopicInfo
from spark_eos._kafka.groups import own_group
from spark_eos._pyspark_internals import StreamSource, is_connect
from spark_eos._sink.batches import SinkBatches
from spark_eos._sink.reader import read_from_offsets, source_topics
from spark_eos._sink.writer import ExactlyOnceWriter
from spark_eos._spark.dead_letter_columns import check_error_column
from spark_eos._spark.names import with_known_names
from spark_eos._spark.narrow_plan import explained, with_own_topic_marked
from spark_eos._spark.source_options import selection_of
from spark_eos._spark.stream_sources import check_read_for, sources_of, topics_read
from spark_eos._status.status import Status, ask_status
from spark_eos._worker.dead_letter_settings import DeadLetterSettings
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.errors import UnsupportedPipelineError
from spark_eos.observability.on_batch import OnBatch, as_observers
from spark_eos.options import DeadLetters, Limits, ProgressTopic, Transactions


class ExactlyOnceSink:
    """Writes a streaming query's rows to Kafka exactly once, together with its source offsets.

    One sink serves one query. Each Spark task writes in Kafka transactions. Inside them it commits
    the offsets of the source records it consumed (TxnOffsetCommit, by topic id where the brokers
    support version 6, KIP-1319), as the consumer group member to which the partition is assigned
    (KIP-848, KAFKA-20191). Consumers of the output see each record once if they read with
    ``isolation.level=read_committed``.

    There are three deliveries. A narrow pipeline is written *direct*, or, from another cluster
    (``source_kafka``), *mirrored*; any other one is *staged* in files first.

    Examples:
        A query from topic to topic:

            sink = ExactlyOnceSink(
                kafka={"bootstrap.servers": "localhost:9092"},
                group_id="order-processors",
                topic="orders-enriched",
                checkpoint_location="/checkpoints/orders",
            )
            orders = sink.read(spark, subscribe="orders")
            query = sink.write(orders.select("source", "key", "value")).start()

    Args:
        kafka: Client settings in librdkafka's names, for all clients. ``bootstrap.servers`` is
            required.
        group_id: Consumer group whose committed offsets are the query's progress. No other
            consumer may use it.
        checkpoint_location: The streaming query's checkpoint, on any file system Spark knows.
        topic: Default target topic; a ``topic`` column overrides it for each row. If None, every
            row must name its topic.
        source_kafka: Client settings for the cluster to read from, if it is a different one. The
            group is in the cluster of ``kafka``.
        delivery: ``direct`` writes rows immediately; they must stay in their source partitions.
            ``mirrored`` does the same with ``source_kafka``. ``staged`` first writes each batch to
            files below the checkpoint, and accepts any query. ``auto`` stages only if it must, and
            refuses a query that lacks only ``source``. A query keeps its first delivery.
        transactions: The size of transactions, and the prefix of their ids.
        dead_letters: Topic for rows that can't be written, and how many there may be; by default,
            the query fails at the first such row.
        progress_topic: Name of a mirrored or staged query's progress topic, or a `ProgressTopic`,
            which also says how to create it.
        limits: Attempts and waiting times.
        moved_from: Id of the query whose offsets a new checkpoint continues from, although
            ``topic`` or all sources differ. The error that asks for this option names the id. Has
            no effect later.
        fail_on_data_loss: Whether the query fails if source records were deleted before they were
            read. If False, each gap is logged and reported (`BatchReport.lost`).
        asynchronous_progress: Whether Spark logs progress about once a second instead of twice per
            batch. Only for direct and mirrored queries in classic Spark; has no effect with
            ``availableNow``. After a crash, Spark may reuse a batch number for different rows.
        on_batch: One or more functions to call with each `BatchReport` once the batch is committed.
            They run on the driver or, as copies, on Spark Connect's server. If a function raises,
            the exception is logged, and the query continues.

    Raises:
        ConfigurationError: An option can't be used as given.
    """

    @typed
    def __init__(
        self,
        *,
        kafka: Mapping[str, Any],
        group_id: str,
        checkpoint_location: str,
        topic: str | None = None,
        source_kafka: Mapping[str, Any] | None = None,
        delivery: str = AUTO,
        transactions: Transactions = Transactions(),
        dead_letters: DeadLetters | None = None,
        progress_topic: str | ProgressTopic = "spark-eos-progress",
        limits: Limits = Limits(),
        moved_from: str | None = None,
        fail_on_data_loss: bool = True,
        asynchronous_progress: bool = False,
        on_batch: OnBatch | Iterable[OnBatch] | None = None,
    ) -> None:
        check_text("checkpoint_location", checkpoint_location)
        check_delivery(delivery, other_cluster=source_kafka is not None)
        self._settings = WriterSettings(
            client=ClientSettings(kafka).checked_by_librdkafka(transactions.timeout_ms),
            source_client=ClientSettings.of_source(source_kafka),
            group_id=group_id,
            topic=topic,
            transactions=transactions,
            limits=limits,
            moved_from=moved_from,
            fail_on_data_loss=fail_on_data_loss,
            dead_letters=DeadLetterSettings.of(dead_letters),
        )
        self._checkpoint_location = checkpoint_location
        self._wanted_delivery = delivery
        self._asynchronous_progress = asynchronous_progress
        self._progress_topic = (
            progress_topic
            if isinstance(progress_topic, ProgressTopic)
            else ProgressTopic(progress_topic)
        )
        # The query of the last call of `write`.
        self._written: SinkQuery | None = None
        # The last call of `read` for each selection of topics.
        self._reads: list[_Read] = []
        self._batches = SinkBatches(self._settings, as_observers(on_batch))

    def __repr__(self) -> str:
        settings = self._settings
        return (
            f"ExactlyOnceSink(group_id={settings.group_id!r}, topic={settings.topic!r}, "
            f"kafka={settings.client!r})"
        )

    def _repr_html_(self) -> str:
        settings, source = self._settings, self._settings.source_client
        letters, query = settings.dead_letters, self._written
        rows = {
            "group": settings.group_id,
            "target topic": settings.topic or "as the rows say",
            "delivery": f"{self._wanted_delivery}, before write"
            if query is None
            else query.delivery.name,
            "checkpoint": without_credentials(self._checkpoint_location),
            "kafka": str(settings.client),
            **({} if source is None else {"source_kafka": str(source)}),
            **({} if letters is None else {"dead-letter topic": letters.topic}),
        }
        return as_html(FittingTable("ExactlyOnceSink", "value", rows=rows.items()))

    # Looking ----------------------------------------------------------------------------------

    def status(self) -> Status:
        """Ask the cluster for the query's state: group, offsets, lag, open transactions.

        ``spark-eos status`` shows the same, and a notebook shows it as tables. The call only reads,
        so it does not affect the query, running or not. ``connect_timeout_ms`` limits its duration.

        Returns:
            The status. For a mirrored query, the lag is measured in the source's cluster.

        Raises:
            UnknownGroupError: No query has run with this group, or its offsets have expired.
            DeadlineExceededError: No answer arrived in time.
            AuthenticationError: A broker and this client do not accept each other.
            AuthorizationError: An ACL is missing; see ``spark-eos acls --for status``.
            KafkaResponseError: A broker refuses a request for another reason.

        Examples:
            ::

                print(sink.status().lag)  # records from the committed offsets to the topics' ends
        """
        settings = self._settings
        return ask_status(
            settings.client,
            settings.group_id,
            settings.transactions.id_prefix,
            settings.limits.connect_timeout_ms / 1000,
            "connect_timeout_ms",
            source_client=settings.source_client,
            targets=settings.target_topics,
        )

    # Reading ----------------------------------------------------------------------------------

    @typed
    def read(
        self,
        spark: SparkSession,
        *,
        subscribe: str | Iterable[str] | None = None,
        subscribePattern: str | None = None,  # noqa: N803 - Spark's name for it
        assign: str | Mapping[str, Iterable[int]] | None = None,
        starting_offsets: str = "earliest",
        include_headers: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> DataFrame:
        """Read source topics as a streaming DataFrame, starting at the group's committed offsets.

        Args:
            spark: The session, classic or Spark Connect.
            subscribe: Topic names, as a list or separated by commas.
            subscribePattern: Java regular expression that must match a topic's whole name. The
                sink's ``topic``, dead-letter topic and progress topic are never read.
            assign: Topics and partitions, as a dict such as ``{"orders": [0, 1]}``, or as JSON.
            starting_offsets: Where a group without committed offsets starts: ``earliest`` or
                ``latest``. Topics and partitions added later are read from their beginning.
            include_headers: Whether to read the records' headers as well.
            options: Further options of Spark's Kafka source, such as ``maxOffsetsPerTrigger``.

        Returns:
            The columns of Spark's Kafka source, and ``source``, a struct of ``topic``,
            ``partition`` and ``offset`` that `write` needs unchanged. With ``dead_letters``
            it also carries the record's key, value, headers and timestamp.

        Raises:
            ConfigurationError: None or several of subscribe, subscribePattern and assign are given,
                the pattern is invalid, or a topic is named that the sink writes to; or ``kafka``
                has ``oauth_cb`` and the source has no way to log in; or Spark has no Kafka source,
                or the Python of its local workers can't run the sink's tasks.
            AuthenticationError: A broker and this client do not accept each other.
            UnsupportedPipelineError: An option would split or reorder source partitions.
            TopicNotFoundError: A source topic does not exist.
            AuthorizationError: ACLs that the query needs are missing; see ``spark-eos acls``.
        """
        with self._batches.start as start:
            frame, selected = read_from_offsets(
                spark,
                start,
                self._settings,
                selection_of(subscribe, subscribePattern, assign),
                progress_topic=self._progress_topic.name,
                starting_offsets=starting_offsets,
                include_headers=include_headers,
                options=options,
            )
        others = [read for read in self._reads if read.options != selected.options]
        self._reads = [*others, _Read(selected.options, selected.topics, starting_offsets)]
        return frame

    # Writing ----------------------------------------------------------------------------------

    @typed
    def write(self, frame: DataFrame) -> ExactlyOnceWriter:
        """Check a streaming DataFrame and the cluster, and return the writer to start.

        Columns: ``value`` (binary or string; null is a tombstone), and optionally ``key`` (binary
        or string), ``headers`` (array of struct<key, value>), ``topic``, ``partition`` and
        ``timestamp``. To be written directly, the rows also need ``source`` from `read`. With
        ``dead_letters``, ``error`` (string, or struct<message, exception, stacktrace>) makes
        a row a dead letter unless it is null. Other columns are ignored.

        Args:
            frame: The streaming DataFrame.

        Returns:
            A writer with the methods of Spark's DataStreamWriter that fit the sink; choose a
            trigger and start.

        Raises:
            UnsupportedPipelineError: A column can't be written, or the wanted delivery can't write
                the plan.
            UnsupportedBrokerError: The cluster lacks a feature that exactly-once needs.
            TopicNotFoundError: A source topic or the target topic does not exist.
            ForeignMemberError: Another consumer uses the group.
            ConfigurationError: A setting does not fit the cluster.
            AuthorizationError: ACLs that the query needs are missing.
            AuthenticationError: A broker and this client do not accept each other.
        """
        frame = with_known_names(frame)
        with self._batches.start as start:
            query = _checked_by_cluster(self._checked(frame, start), start, frame.sparkSession)
        self._written = query
        return ExactlyOnceWriter(
            self._batches,
            query,
            with_own_topic_marked(frame),
            asynchronous=self._asynchronous_progress,
        )

    def _checked(self, frame: DataFrame, start: Start) -> SinkQuery:
        """Return the query of a streaming DataFrame whose columns and plan can be written."""
        settings = self._settings
        if settings.dead_letters is not None:
            check_error_column(frame.schema)
        plans = explained(frame)
        sources = sources_of(frame)
        check_read_for(settings.group_id, sources, fail_on_data_loss=settings.fail_on_data_loss)
        # A notebook may have read other topics before. If a view or SQL hides a source from a Spark
        # Connect client, any read may be the query's.
        reads = [read for read in self._reads if read.is_of(sources)] or self._reads
        query = query_of_stream(
            frame,
            plans,
            sources,
            self._wanted_delivery,
            settings,
            start,
            location=self._checkpoint_location,
            progress_topic=self._progress_topic,
            selections=[read.options for read in reads],
            starting_offsets={read.starting_offsets for read in reads},
        )
        if self._asynchronous_progress:
            if is_connect(frame):
                raise UnsupportedPipelineError(
                    "asynchronous_progress needs classic Spark: on Spark Connect, only Spark's log "
                    "shows which offsets a batch has. Leave it out"
                )
            query.delivery.check_asynchronous_progress()
        query.delivery.check_losses_seen(query)
        return replace(query, topics_at_read=tuple(read.topics for read in reads))

    # One batch --------------------------------------------------------------------------------

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one micro-batch, for a function of your own that foreachBatch calls.

        ``sink.write(...).start()`` does not call this method: it hands `SinkBatches` to
        foreachBatch.

        Raises:
            SparkEosError: The batch is not written; Spark stops the query with this error.
        """
        self._batches(frame, batch_id)

    def close(self) -> None:
        """Make the query's group member leave now; for use after the query has stopped.

        Optional: the member leaves by itself about a second after the query ends, or when the
        driver exits. On Spark Connect, the client does not hold the member. This also closes the
        connections of a start that led to no batch, which otherwise stay open until the sink is
        garbage-collected. May be called again.
        """
        self._batches.close()


@dataclass(frozen=True)
class _Read:
    """A call of `ExactlyOnceSink.read`: the selection as Spark's options, and its topics then."""

    options: dict[str, str]
    topics: dict[str, TopicInfo]
    starting_offsets: str

    def is_of(self, sources: Iterable[StreamSource]) -> bool:
        """Return True if one of a query's sources reads this selection."""
        selection = {name.lower(): text for name, text in self.options.items()}
        return any(selection.items() <= source.options.items() for source in sources)


def _checked_by_cluster(query: SinkQuery, start: Start, spark: SparkSession) -> SinkQuery:
    """Return the query if the cluster can run it, with the topics to which no row may go."""
    settings, progress = query.settings, query.progress_topic

    def here(servers: str) -> bool:
        return query.delivery.reads_here(start, servers)

    read = topics_read(query.sources, here)
    # A pattern of a reader other than sink.read may match these topics.
    read_back = read.among(spark, {progress.name, *settings.target_topics})
    if progress.name in read_back:
        raise preflight.feeds_itself("progress_topic", progress.name)
    settings = replace(settings, source_topics=read.names | read_back | {progress.name})
    topics = set[str]()
    if settings.source_client is None:
        topics |= source_topics(spark, start, query.selections)
    if query.delivery.uses_progress_topic:
        topics.add(progress.name)
    # Check before the progress topic is created, so that the error names every missing ACL.
    preflight.check_cluster(start, settings, topics, start.deadline())
    query.delivery.create_progress_topic(start, progress)
    own_group(start.target, settings.group_id, start.deadline())
    return replace(query, settings=settings, source_patterns=read.patterns)
