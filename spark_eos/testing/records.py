"""Writes and reads the records of topics as DataFrames."""

import datetime
import json
import time
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos._client.settings import ClientSettings
from spark_eos.errors import TopicNotFoundError
from spark_eos.testing.broker_admin import TIMEOUT, Ends, end_offsets

_PAUSE: Final = 0.02
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_SCHEMA: Final = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, "
    "partition int, offset long, timestamp timestamp"
)
_COLUMNS: Final = ("key", "value", "headers", "partition", "offset", "timestamp")
_GIVEN: Final = frozenset(_COLUMNS) - {"offset"}


class Broker(Protocol):
    """Anything with an address, such as an `EmbeddedKafka`."""

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients."""


Kafka = Broker | Mapping[str, Any]


def produce(
    spark: SparkSession, kafka: Kafka, topic: str, rows: DataFrame | Iterable[Mapping[str, Any]]
) -> DataFrame:
    """Append records to a topic, in order, and wait until they are written.

    Args:
        spark: The session.
        kafka: An `EmbeddedKafka`, or client settings as `ExactlyOnceSink` takes them.
        topic: An existing topic.
        rows: A DataFrame small enough to be collected, or dictionaries. Columns: ``value`` and
            ``key`` (string or bytes; None if absent), ``headers`` (pairs of string and bytes),
            ``partition`` (if absent, chosen by the key as in Kafka's Java producer) and
            ``timestamp`` (if absent, the current time; rounded down to milliseconds, and
            1970-01-01T00:00:00Z is written 1 ms later, because librdkafka takes it as absent).

    Returns:
        The records with their partitions and offsets, in the same order and with the columns of
        `consume_committed`.

    Raises:
        TopicNotFoundError: The topic does not exist.
        ValueError: A row has a column that records don't have.
        confluent_kafka.KafkaException: The broker refuses the request, or does not answer within
            30 seconds.

    Examples:
        ::

            produce(spark, kafka, "orders", [{"key": "c-1", "value": '{"amount": 3}'}])
    """
    given = [row.asDict() for row in rows.collect()] if isinstance(rows, DataFrame) else rows
    settings = {
        **_client(kafka).for_consumer(),
        "enable.idempotence": True,
        "message.timeout.ms": int(TIMEOUT * 1000),
        "partitioner": "murmur2_random",
    }
    producer = Producer(settings)
    _partitions(producer, topic)
    delivered: dict[int, Message] = {}
    refused: list[KafkaError] = []

    def note(number: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            delivered[number] = message
        else:
            refused.append(error)

    wanted = [_arguments(row) for row in given]
    for number, arguments in enumerate(wanted):
        producer.produce(topic, on_delivery=partial(note, number), **arguments)
        if number % 10_000 == 0:
            producer.flush()
    producer.flush()
    if refused:
        raise KafkaException(refused[0])
    records = [_record(arguments, delivered[n]) for n, arguments in enumerate(wanted)]
    return spark.createDataFrame(records, _SCHEMA)


def consume_committed(
    spark: SparkSession, kafka: Kafka, topic: str, *, settle: float = 5.0
) -> DataFrame:
    """Read the records that a consumer with ``isolation.level=read_committed`` sees.

    A transaction's records become visible only when its markers are written, a moment after its
    commit is acknowledged. Therefore, this function waits until no transaction is open, for up to
    `settle` seconds.

    Args:
        spark: The session.
        kafka: An `EmbeddedKafka`, or client settings as `ExactlyOnceSink` takes them.
        topic: An existing topic.
        settle: Maximum number of seconds to wait for open transactions to end.

    Returns:
        The records below the last stable offsets at the time of the call, no matter when the
        DataFrame is evaluated, in order of partition and offset. Columns: ``key`` and ``value``
        (binary), ``headers`` (null if there are none), ``partition``, ``offset`` and
        ``timestamp``.

    Raises:
        TopicNotFoundError: The topic does not exist.
        confluent_kafka.KafkaException: The broker refuses the request, or does not answer within
            30 seconds.

    Examples:
        ::

            assert consume_committed(spark, kafka, "orders-enriched").count() == 3
    """
    client = _client(kafka)
    partitions = _partitions(AdminClient(client.for_consumer()), topic)
    ends, _all = settled_ends(client.for_consumer(), topic, partitions, settle)
    options = {
        **client.for_spark_source(),
        "kafka.isolation.level": "read_committed",
        "subscribe": topic,
        "startingOffsets": "earliest",
        "endingOffsets": json.dumps({topic: {str(p): offset for p, offset in ends.items()}}),
        "includeHeaders": "true",
    }
    records = spark.read.format("kafka").options(**options).load().select(*_COLUMNS)
    return records.coalesce(1).sortWithinPartitions("partition", "offset")


class _Writer(Protocol):
    """Spark's writer for a streaming query, or the sink's."""

    def trigger(self, *, availableNow: bool) -> "_Writer":  # noqa: N803
        """Choose the trigger."""

    def start(self) -> StreamingQuery:
        """Start the query."""


def process_available(writer: _Writer, *, timeout: int = 60) -> list[StreamingQueryProgress]:
    """Run a query until it has processed everything available now (``availableNow``).

    Args:
        writer: A writer from `ExactlyOnceSink.write`, or any other; its trigger is replaced.
        timeout: Seconds within which the query must end.

    Returns:
        Spark's progress for each batch; by default, Spark keeps the last hundred.

    Raises:
        pyspark.errors.StreamingQueryException: The query failed.
        TimeoutError: The query took longer than `timeout` and was stopped, or could not be stopped
            within ``spark.sql.streaming.stopTimeout`` (a minute in sessions of `spark_session`).

    Examples:
        ::

            progress = process_available(sink.write(enriched))
            assert sum(batch.numInputRows for batch in progress) == 3
    """
    query = writer.trigger(availableNow=True).start()
    try:
        ended = query.awaitTermination(timeout)
        progress = query.recentProgress if ended else []
    except BaseException:
        query.stop()
        raise
    overdue = f"the query has not ended within {timeout} s (timeout)"
    try:
        query.stop()
    except Exception as error:
        raise TimeoutError(f"{overdue}, and could not be stopped: {error}") from error
    if not ended:
        raise TimeoutError(overdue)
    return progress


def _client(kafka: Kafka) -> ClientSettings:
    if isinstance(kafka, Mapping):
        return ClientSettings(kafka)
    return ClientSettings({"bootstrap.servers": kafka.bootstrap_servers})


def _partitions(client: Producer | AdminClient, topic: str) -> list[int]:
    metadata = client.list_topics(topic, timeout=TIMEOUT).topics[topic]
    if metadata.error is not None and metadata.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise TopicNotFoundError(f"topic {topic!r} does not exist; create it first")
    return sorted(metadata.partitions)


def _arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(row.keys() - _GIVEN)
    if unknown:
        raise ValueError(
            f"records have no column {', '.join(unknown)}; allowed are {', '.join(sorted(_GIVEN))}"
        )
    headers = [(name, _bytes(value)) for name, value in row.get("headers") or ()]
    arguments: dict[str, Any] = {
        "headers": headers,
        **{name: _bytes(row.get(name)) for name in ("key", "value")},
    }
    if row.get("partition") is not None:
        arguments["partition"] = row["partition"]
    if row.get("timestamp") is not None:
        since_epoch = row["timestamp"].astimezone(datetime.timezone.utc) - _EPOCH
        milliseconds = since_epoch // datetime.timedelta(milliseconds=1)
        # librdkafka takes 0 for the time of writing.
        arguments["timestamp"] = milliseconds or 1
    return arguments


def _bytes(value: str | bytes | bytearray | None) -> bytes | None:
    if isinstance(value, bytearray):  # the type of binary columns in rows of Spark 4.0
        return bytes(value)
    return value.encode() if isinstance(value, str) else value


def _record(arguments: Mapping[str, Any], message: Message) -> tuple[Any, ...]:
    _kind, milliseconds = message.timestamp()
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.timezone.utc)
    # Take the content from the arguments: the delivered message has lost its headers.
    content = (arguments["key"], arguments["value"], arguments["headers"] or None)
    return (*content, message.partition(), message.offset(), moment)


def settled_ends(
    settings: Mapping[str, Any], topic: str, partitions: Collection[int], settle: float
) -> tuple[Ends, Ends]:
    """Wait until last stable offsets and high watermarks are equal; return both."""
    # Nothing else may refer to the client: an AdminClient closes only when it is garbage-collected,
    # and until then it tries to reach its brokers, even those that are gone. Logging is off: errors
    # are raised, and librdkafka logs a line if a client closes right after an answer.
    admin = AdminClient({"log_level": 0, **settings})
    until = time.monotonic() + settle
    while True:
        # Read the high watermarks last, so that they are never older than the stable offsets.
        stable = end_offsets(admin, topic, partitions, IsolationLevel.READ_COMMITTED)
        ends = end_offsets(admin, topic, partitions)
        # Markers may be written a moment after a transaction's end is acknowledged. If the offsets
        # still differ after the wait, a transaction is open.
        if stable == ends or time.monotonic() >= until:
            return stable, ends
        time.sleep(_PAUSE)
