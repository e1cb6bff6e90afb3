"""The pipelines of the query under test, and their input records.

Every output record has the source position in the header ``position``, which the query takes from
the ``source`` column. Every input record has the number of outputs that the verifier should expect
in the header ``expect``.
"""

import random
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from chaos.staged_places import wait_if_asked
from spark_eos import guarded

POSITION = "position"
EXPECT = "expect"
_SLEEP_FILE, _RAISE_FILE = "sleep", "raise"


@dataclass(frozen=True)
class Record:
    """One input record, before it has an offset."""

    topic: int
    partition: int
    key: bytes
    value: bytes
    expect: int


@dataclass(frozen=True)
class Load:
    sources: int  # number of source topics
    targets: int  # number of target topics
    partitions: int  # initial number for each topic
    max_offsets: int  # maximum for one trigger
    # Rows of an Arrow batch. A partition has more, so that the user's function can fail after a
    # transaction of the same task has committed.
    arrow_rows: int
    top_up: int  # number of records produced whenever the query is about to run out of them
    options: dict[str, Any]  # arguments of ExactlyOnceSink
    # Makes the n-th record, given the partitions of a source topic.
    record: Callable[[random.Random, int, int], Record]
    # Turns the source's frame and the targets into the columns to write, except headers; with
    # schemas, it also gets the registry's URL and a directory for pins.
    transform: Callable[..., DataFrame]
    # The user's function for each batch; None if there is none.
    of_batch: Callable[[DataFrame, int], DataFrame] | None = None
    mode: str = "append"  # the query's output mode
    by_key: bool = False  # whether a row replaces the previous row with its key
    # For a staged load, the last record of each partition, if any.
    closing: Callable[[int], Record] | None = None
    # Whether one record in a hundred can't be written, and there is a dead-letter topic.
    dead_letters: bool = False
    small: bool = False  # whether the last target's limit is `MAX_BYTES`
    # For a load with schemas, encodes the rows at the end, with the same further arguments.
    encode: Callable[..., DataFrame] | None = None
    # The number in a staged row's value; a key's rows must be in the order of their numbers.
    number: Callable[[bytes], int] = lambda value: int(value[:12])
    # For a load with schemas, makes `record` from a registry's URL.
    of_registry: Callable[[str], Callable[[random.Random, int, int], Record]] | None = None


def _relay_record(chosen: random.Random, number: int, partitions: int) -> Record:
    value = b"%012d" % number + b"x" * 88
    return Record(0, chosen.randrange(partitions), b"%06d" % (number % 100_000), value, 1)


def _relay(frame: DataFrame, targets: list[str]) -> DataFrame:
    return frame.select("source", "key", "value", F.lit(targets[0]).alias("topic"))


# Filters out partition 1 of the first topic, and elsewhere one record in three.
_ENRICH_DROPS = "(topic_no = 0 and source.partition = 1) or crc32(value) % 3 = 0"


def _enrich_record(chosen: random.Random, number: int, partitions: int) -> Record:
    topic, partition = chosen.randrange(2), chosen.randrange(partitions)
    value = b"%012d" % number
    dropped = (topic == 0 and partition == 1) or zlib.crc32(value) % 3 == 0
    return Record(topic, partition, b"k%d" % (number % 1_000), value, 0 if dropped else 1)


def _enrich(frame: DataFrame, targets: list[str]) -> DataFrame:
    numbered = frame.withColumn("topic_no", F.expr("cast(right(source.topic, 1) as int)"))
    return numbered.filter(f"not ({_ENRICH_DROPS})").select(
        "source",
        "key",
        F.concat(F.col("value"), F.lit(b" enriched")).alias("value"),
        F.when(F.expr("source.offset % 2 = 0"), targets[0]).otherwise(targets[1]).alias("topic"),
    )


def _skewed_record(chosen: random.Random, number: int, partitions: int) -> Record:
    partition = 0 if chosen.random() < 0.8 else chosen.randrange(partitions)
    size = 200_000 if number % 40 == 0 else chosen.randrange(500, 6_000)
    return Record(0, partition, b"%d" % number, chosen.randbytes(64) * (size // 64), 3)


def _skewed(frame: DataFrame, targets: list[str]) -> DataFrame:
    # Each record has three outputs, which must stay in one transaction, although Spark ends its
    # batches at 10,000 rows, within a record.
    return frame.select(
        "source",
        "key",
        F.explode(F.array("value", F.reverse("value"), F.concat("value", "value"))).alias("value"),
        F.lit(targets[0]).alias("topic"),
    )


# The limit of the second target of a load with dead letters.
MAX_BYTES = 20_000
_FAULTS = (b"error", b"raise", b"large", b"topic", b"place")


def spoiled(value: bytes, number: int) -> bytes:
    """A value with a mark after its first 12 bytes: whether, and why, it can't be written."""
    fault = _FAULTS[number // 100 % len(_FAULTS)] if number % 100 == 7 else b"good."
    return value[:12] + fault + value[12:]


def fault() -> Column:
    return F.expr("cast(substring(value, 13, 5) as string)")


def enlarged() -> Column:
    return F.when(fault() == "large", F.repeat("value", 900)).otherwise(F.col("value"))


def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
    if any(value[12:17] == b"raise" for value in batch.column("value").to_pylist()):
        raise ValueError("the user's function can't take this record")
    return batch


def with_faults(rows: DataFrame, targets: list[str], error: Column) -> DataFrame:
    """Rows with the faults that their values name: a missing topic, a size, an error, and so on."""
    topic = F.when(fault() == "large", targets[1]).when(fault() == "topic", "nowhere")
    return rows.select(
        "source",
        "key",
        enlarged().cast("binary").alias("value"),
        topic.otherwise(targets[0]).alias("topic"),
        F.when(fault() == "place", 1_000).cast("int").alias("partition"),
        error.alias("error"),
    )


def _poison_record(chosen: random.Random, number: int, partitions: int) -> Record:
    value = spoiled(b"%012d" % number + b"x" * 88, number)
    return Record(0, chosen.randrange(partitions), b"%06d" % (number % 100_000), value, 1)


def _poison(frame: DataFrame, targets: list[str]) -> DataFrame:
    rows = guarded(frame, refuse, "key binary, value binary", kind="arrow")
    return with_faults(rows, targets, F.when(fault() == "error", F.lit("it is judged so")))


LOADS = {
    "relay": Load(
        1, 1, 4, 60_000, 5_000, 250_000, {"max_transaction_records": 10_000}, _relay_record, _relay,
    ),
    "enrich": Load(
        2, 2, 3, 60_000, 5_000, 250_000, {}, _enrich_record, _enrich,
    ),
    "skewed": Load(
        1,
        1,
        3,
        1_500,
        200,
        6_000,
        {"max_transaction_records": 300, "max_transaction_bytes": 4 << 20},
        _skewed_record,
        _skewed,
    ),
    "poison": Load(
        1,
        2,
        4,
        30_000,
        5_000,
        120_000,
        {"max_transaction_records": 5_000, "max_block_ms": 3_000},
        _poison_record,
        _poison,
        dead_letters=True,
        small=True,
    ),
}  # fmt: skip


def transformed(
    load: Load, frame: DataFrame, targets: list[str], control: Path, schemas: dict[str, str]
) -> DataFrame:
    """The whole pipeline, with its position header, and with tasks that faults can control."""
    rows = load.transform(disturbed(frame, control), targets, **schemas)
    position = F.expr(
        "encode(concat(source.topic, ':', source.partition, ':', source.offset), 'UTF-8')"
    )
    header = F.struct(F.lit(POSITION).alias("key"), position.alias("value"))
    rows = rows.withColumn("headers", F.array(header))
    return rows if load.encode is None else load.encode(rows, **schemas)


def disturbed(frame: DataFrame, control: Path) -> DataFrame:
    """Tasks that sleep or raise if a file asks for it; the first task to remove the file obeys."""
    directory = str(control)

    def obey(directory: str) -> None:
        wait_if_asked(Path(directory))
        seconds = _taken(directory, _SLEEP_FILE)
        if seconds is not None:
            time.sleep(float(seconds))
        if _taken(directory, _RAISE_FILE) is not None:
            raise ValueError("the user's function fails, as it was told to")

    def disturb(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        obey(directory)
        for batch in batches:
            yield batch
            obey(directory)

    return frame.mapInArrow(disturb, frame.schema)


def _taken(directory: str, name: str) -> str | None:
    file = Path(directory, name)
    try:
        found = file.read_text()
        file.unlink()
    except FileNotFoundError:
        return None
    return found


def ask_a_task_to_sleep(control: Path, seconds: float) -> None:
    """Makes the next task that begins, or finishes an Arrow batch, sleep."""
    _put(control / _SLEEP_FILE, str(seconds))


def ask_a_task_to_raise(control: Path) -> None:
    """Makes the next task that begins, or finishes an Arrow batch, raise."""
    _put(control / _RAISE_FILE, "now")


def ask_nothing_more(control: Path) -> None:
    """Withdraws requests that no task has seen yet."""
    for name in (_SLEEP_FILE, _RAISE_FILE):
        (control / name).unlink(missing_ok=True)


def _put(file: Path, text: str) -> None:
    draft = file.with_suffix(f".{uuid.uuid4().hex}")
    draft.write_text(text)
    draft.rename(file)


class Source:
    """Produces a load's records in any number of portions; only their timing varies."""

    def __init__(self, load: Load, topics: list[str], bootstrap_servers: str, seed: int) -> None:
        self._load = load
        self._topics = topics
        self._chosen = random.Random(seed)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 50,
                "topic.metadata.refresh.interval.ms": 1_000,
                # A leader that is partitioned from its followers accepts records that never reach
                # them; by default, it waits for half a minute each time.
                "request.timeout.ms": 3_000,
                "socket.timeout.ms": 6_000,
                "log_level": 0,
            }
        )
        self.produced = 0

    def top_up(self, partitions: int) -> None:
        """Produces a portion, and waits for it; ``partitions`` is the topics' current number."""
        for _ in range(self._load.top_up):
            self._produce(self._load.record(self._chosen, self.produced, partitions))
        self._flush()

    def close(self, partitions: int) -> None:
        """Produces the last records of loads that have them."""
        if self._load.closing is not None:
            for partition in range(partitions):
                self._produce(self._load.closing(partition))
            self._flush()

    def _produce(self, record: Record) -> None:
        headers: list[tuple[str, str | bytes | None]] = [(EXPECT, b"%d" % record.expect)]
        while True:
            try:
                self._producer.produce(
                    self._topics[record.topic],
                    record.value,
                    record.key,
                    record.partition,
                    headers=headers,
                )
                break
            except BufferError:
                self._producer.poll(0.05)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    raise
                # The partition is new; list_topics with a name makes librdkafka look it up.
                self._producer.list_topics(self._topics[record.topic], timeout=10)
        self.produced += 1

    def _flush(self) -> None:
        if self._producer.flush(120):
            raise TimeoutError("input could not be produced")
