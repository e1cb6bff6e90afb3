"""Records into topics and out of them, as DataFrames."""

import datetime
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_eos.client.settings import ClientSettings
from spark_eos.errors import TopicNotFoundError
from spark_eos.testing.broker_admin import TIMEOUT
from spark_eos.testing.partition_ends import settled_ends

_SCHEMA: Final = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, "
    "partition int, offset long, timestamp timestamp"
)
_COLUMNS: Final = ("key", "value", "headers", "partition", "offset", "timestamp")
_GIVEN: Final = frozenset(_COLUMNS) - {"offset"}


class Broker(Protocol):
    """Whatever has an address, such as an `EmbeddedKafka`."""

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients."""


Kafka = Broker | Mapping[str, Any]


def produce(
    spark: SparkSession, kafka: Kafka, topic: str, rows: DataFrame | Iterable[Mapping[str, Any]]
) -> DataFrame:
    """Appends records to a topic, in their order, and waits until they are there.

    Args:
        spark: The session.
        kafka: An `EmbeddedKafka`, or client settings as `ExactlyOnceSink` takes them.
        topic: An existing topic.
        rows: A DataFrame small enough to be collected, or dictionaries. Columns: ``value`` and
            ``key`` (string or bytes; None where absent), ``headers`` (pairs of string and bytes),
            ``partition`` (by the key where absent, as Kafka's Java producer does) and
            ``timestamp`` (the present time where absent).

    Returns:
        The records with the partitions and offsets they have got, in the same order; columns as
        `consume_committed` has them.

    Raises:
        TopicNotFoundError: The topic does not exist.
        ValueError: A row has a column that no record has.
        confluent_kafka.KafkaException: The broker refuses, or does not answer within 30 seconds.
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
    """The records of a topic that a consumer with ``isolation.level=read_committed`` sees.

    A transaction's records become visible a moment after its commit is acknowledged, once its
    markers are written; so this waits until no transaction is open, but not longer than `settle`.

    Args:
        spark: The session.
        kafka: An `EmbeddedKafka`, or client settings as `ExactlyOnceSink` takes them.
        topic: An existing topic.
        settle: Seconds to wait for open transactions to end.

    Returns:
        What lies before the last stable offsets of this moment, however late it is evaluated, in
        order of partition and offset: ``key`` and ``value`` (binary), ``headers`` (null where there
        are none), ``partition``, ``offset`` and ``timestamp``.

    Raises:
        TopicNotFoundError: The topic does not exist.
        confluent_kafka.KafkaException: The broker refuses, or does not answer within 30 seconds.
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


def process_available(
    writer: DataStreamWriter, *, timeout: int = 60
) -> list[StreamingQueryProgress]:
    """Runs a query until all is processed that its sources have now (``availableNow``).

    Args:
        writer: From `ExactlyOnceSink.write`, or any other; its trigger is replaced.
        timeout: Seconds within which the query must have ended.

    Returns:
        Spark's progress of its batches, the last hundred of them by default.

    Raises:
        pyspark.errors.StreamingQueryException: The query has failed.
        TimeoutError: It takes longer; it is stopped.
    """
    query = writer.trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(timeout):
            raise TimeoutError(f"the query has not ended within {timeout} s (timeout)")
        return query.recentProgress
    finally:
        query.stop()


def _client(kafka: Kafka) -> ClientSettings:
    if isinstance(kafka, Mapping):
        return ClientSettings(kafka)
    return ClientSettings({"bootstrap.servers": kafka.bootstrap_servers})


def _partitions(client: Producer | AdminClient, topic: str) -> list[int]:
    found = client.list_topics(topic, timeout=TIMEOUT).topics[topic]
    if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise TopicNotFoundError(f"topic {topic!r} does not exist; create it first")
    return sorted(found.partitions)


def _arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(row.keys() - _GIVEN)
    if unknown:
        raise ValueError(
            f"a record has no column {', '.join(unknown)}; it may have {', '.join(sorted(_GIVEN))}"
        )
    headers = [(name, _bytes(value)) for name, value in row.get("headers") or ()]
    arguments = {"headers": headers, **{name: _bytes(row.get(name)) for name in ("key", "value")}}
    if row.get("partition") is not None:
        arguments["partition"] = row["partition"]
    if row.get("timestamp") is not None:
        arguments["timestamp"] = round(row["timestamp"].timestamp() * 1000)
    return arguments


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _record(arguments: Mapping[str, Any], message: Message) -> tuple[Any, ...]:
    _kind, milliseconds = message.timestamp()
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.timezone.utc)
    # The delivered message has lost its headers.
    content = (arguments["key"], arguments["value"], arguments["headers"] or None)
    return (*content, message.partition(), message.offset(), moment)
