"""docs/recipes.md: each recipe does what the page says."""

import json
import re
import struct
import time
import uuid
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Message, Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.testing import EmbeddedKafka
from support.apis import patiently
from support.flow import consume, transaction
from support.groups import set_offsets
from support.pages import code_blocks, replaced, run_block, with_words

(
    BEGIN,
    POISON,
    HEADERS,
    ROUTING,
    ONCE,
    BACKFILL,
    ARCHIVE,
    SLOWLY,
    BULK,
    _DELTA,
    TABLE,
    _ICEBERG,
    _TO_ICEBERG,
) = code_blocks("recipes", "python")
(RESET,) = (code for code in code_blocks("recipes", "sh") if "--to-datetime" in code)
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


pytestmark = pytest.mark.slow


@dataclass
class Recipe:
    """The page's topics and groups, under the test's own names."""

    broker: EmbeddedKafka
    spark: SparkSession
    directory: Path
    prefix: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def topics(self, *names: str, partitions: int = 2) -> None:
        for name in names:
            self.broker.create_topic(f"{self.prefix}-{name}", partitions)

    def produce(self, values: Iterable[Any], topic: str = "orders", **more: Any) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers})
        for number, value in enumerate(values):
            encoded = value if isinstance(value, bytes) else json.dumps(value).encode()
            chosen = {"partition": number % 2, **more}
            producer.produce(f"{self.prefix}-{topic}", encoded, **chosen)
        assert producer.flush(60) == 0

    def written(self, topic: str) -> list[Message]:
        return consume(self.broker.bootstrap_servers, f"{self.prefix}-{topic}")

    def values(self, topic: str) -> list[str]:
        """The values as text, sorted."""
        return sorted((message.value() or b"").decode() for message in self.written(topic))

    def compression(self, topic: str) -> set[str]:
        """How the first batches of a topic's partitions are compressed, on the broker's disk."""
        (node,) = self.broker.nodes
        logs = node._data().rglob(f"{self.prefix}-{topic}-[0-9]/{0:020}.log")
        batches = [data for log in logs if (data := log.read_bytes())]
        # Of the batch's attributes, in its header, three bits.
        return {_CODECS[struct.unpack_from(">h", data, 21)[0] & 7] for data in batches}

    def run(self, code: str, **instead: str) -> dict[str, Any]:
        """Runs the page's beginning and a recipe until everything available is read."""
        code = replaced(with_words(code, instead), self._words())
        begin = run_block(BEGIN, {"localhost:9092": self.broker.bootstrap_servers})
        begin["spark"] = self.spark
        names = patiently(run_block)(code, {}, **begin)
        query: StreamingQuery = names["query"]
        try:
            query.processAllAvailable()
        finally:
            query.stop()
            if "sink" in names:
                names["sink"].close()
        return names

    def _words(self) -> dict[str, str]:
        return {
            "localhost:9092": self.broker.bootstrap_servers,
            '"orders': f'"{self.prefix}-orders',
            '"checkpoints/': f'"{self.directory}/',
            '"archive/': f'"{self.directory}/archive-',
            '"tables/': f'"{self.directory}/table-',
        }


@pytest.fixture
def recipe(
    embedded_kafka: EmbeddedKafka, spark_eos_session: SparkSession, tmp_path: Path
) -> Recipe:
    spark_eos_session.conf.set("spark.sql.shuffle.partitions", "4")
    return Recipe(embedded_kafka, spark_eos_session, tmp_path)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[BatchReport]:
    """Reports of the recipes' sinks."""
    seen: list[BatchReport] = []
    plain = ExactlyOnceSink.__init__

    def init(self: ExactlyOnceSink, **options: Any) -> None:
        plain(self, **options, on_batch=seen.append)

    monkeypatch.setattr(ExactlyOnceSink, "__init__", init)
    return seen


def test_poison_pills(recipe: Recipe) -> None:
    recipe.topics("orders", "orders-parsed", "orders-parsed-dlq")
    recipe.produce([{"customer": f"c{n}", "amount": n + 0.25} for n in range(9)])
    recipe.produce([b"oops", {"customer": "c", "amount": "much"}])
    recipe.run(POISON)
    found = {(m.key(), m.value()) for m in recipe.written("orders-parsed")}
    assert found == {
        (f"c{n}".encode(), json.dumps({"cents": 100 * n + 25}).encode()) for n in range(9)
    }
    broken = ["oops", json.dumps({"customer": "c", "amount": "much"})]
    assert recipe.values("orders-parsed-dlq") == sorted(broken)


def test_headers(recipe: Recipe) -> None:
    recipe.topics("orders", "orders-traced")
    headers = [("a", b"1"), ("authorization", b"secret"), ("trace-id", b"t7"), ("a", None)]
    recipe.produce([{"n": 1}], headers=headers, key=b"k")
    recipe.produce([{"n": 2}], key=b"k")
    recipe.run(HEADERS)
    found = {m.value(): (m.key(), m.headers()) for m in recipe.written("orders-traced")}
    added = ("traced", b"yes")
    assert found == {
        b'{"n": 1}': (b"t7", [("a", b"1"), ("trace-id", b"t7"), ("a", None), added]),
        b'{"n": 2}': (b"k", [added]),
    }


def test_routing(recipe: Recipe) -> None:
    recipe.topics("orders", "orders-eu", "orders-us", "orders-elsewhere")
    for number, region in enumerate(("eu", "us", "mars", None, "eu")):
        recipe.produce([{"n": number, "region": region}])
    recipe.produce([b"no JSON"])
    recipe.run(ROUTING)

    def numbers(topic: str) -> list[int]:
        values = recipe.values(f"orders-{topic}")
        return [json.loads(value)["n"] for value in values if value.startswith("{")]

    assert [numbers(topic) for topic in ("eu", "us", "elsewhere")] == [[0, 4], [1], [2, 3]]
    assert "no JSON" in recipe.values("orders-elsewhere")


def test_deduplication(recipe: Recipe) -> None:
    recipe.topics("orders", "orders-once")
    orders = [{"id": f"o{number}"} for number in range(20)]
    recipe.produce([*orders, *orders[:7]])
    recipe.run(ONCE)
    # The state lasts from run to run.
    recipe.produce([*orders[5:], {"id": "new"}])
    recipe.run(ONCE)
    assert recipe.values("orders-once") == sorted(map(json.dumps, [*orders, {"id": "new"}]))


def test_a_topic_again(recipe: Recipe) -> None:
    recipe.topics("orders", "orders-prices-2")
    recipe.produce([{"price": number} for number in range(100, 140)])
    recipe.run(BACKFILL)
    assert recipe.values("orders-prices-2") == [str(number) for number in range(100, 140)]
    # Then it goes on live.
    recipe.produce([{"price": number} for number in range(140, 150)])
    recipe.run(BACKFILL, **{"availableNow=True": 'processingTime="1 second"'})
    assert recipe.values("orders-prices-2") == [str(number) for number in range(100, 150)]


def test_from_a_moment_on(recipe: Recipe) -> None:
    recipe.topics("orders", "orders-prices-2")
    # Younger than brokers keep records; one each second.
    first = time.time_ns() // 1_000_000 - 600_000
    for number in range(40):
        price = {"price": 100 + number}
        at = first + 1_000 * number
        recipe.produce([price], partition=number // 3 % 2, timestamp=at)
    printed = [re.findall(rf"{option} (\S+)", RESET)[0] for option in ("--group", "--topic")]
    group, topic = (f"{recipe.prefix}-{name}" for name in printed)
    # What Kafka's command does with a moment.
    servers = recipe.broker.bootstrap_servers
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"any-{recipe.prefix}"})
    with closing(consumer):
        moments = [
            confluent_kafka.TopicPartition(topic, partition, first + 24_500) for partition in (0, 1)
        ]
        found = {
            TopicPartition(at.topic, at.partition): at.offset
            for at in consumer.offsets_for_times(moments)
        }
    assert found == {TopicPartition(topic, 0): 13, TopicPartition(topic, 1): 12}
    set_offsets(servers, group, found)
    for count in (40, 44):
        recipe.run(BACKFILL)
        # Also when it is started again.
        wanted = [str(100 + number) for number in range(25, count)]
        assert recipe.values("orders-prices-2") == wanted
        recipe.produce({"price": 100 + number} for number in range(40, 44))


def test_a_batch_dataframe(recipe: Recipe) -> None:
    recipe.topics("orders-restored")
    rows = [(f"k{number}".encode(), f"order {number}".encode()) for number in (1, 2)]
    for copies in (1, 2):
        recipe.run(ARCHIVE)
        found = sorted((m.key(), m.value()) for m in recipe.written("orders-restored"))
        assert found == sorted(rows * copies)


def test_a_rate_limit(recipe: Recipe, reports: list[BatchReport]) -> None:
    recipe.topics("orders", "orders-slowly")
    recipe.produce([{"n": number} for number in range(50)])
    recipe.run(SLOWLY, **{'"10000"': '"20"', '"10 seconds"': '"1 second"'})
    assert [report.rows_written for report in reports] == [20, 20, 10]
    assert len(recipe.values("orders-slowly")) == 50


def test_bulk(recipe: Recipe, reports: list[BatchReport]) -> None:
    recipe.topics("orders", "orders-bulk")
    orders = [{"n": number} for number in range(5000)]
    recipe.produce(orders)
    recipe.run(BULK, **{'"1 minute"': '"1 second"', "500_000": "500"})
    assert recipe.values("orders-bulk") == sorted(map(json.dumps, orders))
    assert sum(report.rows_written for report in reports) == 5000
    # As large as they may be, and no larger.
    assert sum(report.transactions for report in reports) == 10
    assert recipe.compression("orders-bulk") == {"zstd"}


def test_a_table(recipe: Recipe) -> None:
    recipe.topics("orders-enriched")
    recipe.produce([{"n": number} for number in range(30)], "orders-enriched", key=b"k")
    files = {'"delta"': '"parquet"'}
    recipe.run(TABLE, **files)
    # Rows of an aborted transaction don't get into the table.
    with transaction(recipe.broker.bootstrap_servers, commit=False) as producer:
        producer.produce(f"{recipe.prefix}-orders-enriched", b"aborted")
    recipe.produce([{"n": 30}], "orders-enriched", key=b"k")
    recipe.run(TABLE, **files)
    table = recipe.spark.read.parquet(f"{recipe.directory}/table-orders").collect()
    assert sorted(row["value"] for row in table) == sorted(f'{{"n": {n}}}' for n in range(31))
    assert {row["key"] for row in table} == {"k"}
