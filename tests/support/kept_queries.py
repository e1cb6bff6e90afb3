"""Queries stopped within a batch, saved as files; `test_kept_queries.py` continues them.

``cd tests && ../.venv/bin/python -m support.kept_queries`` saves one of each delivery for a new
format in ``unit/formats/format-N``: the checkpoint with the marker and the staged files, the
group's offsets with their texts, and the topics' records. A format's files are never regenerated:
they show what was written when the format was current.
"""

import json
import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import BatchReport, DeadLetters, ExactlyOnceSink, Transactions
from spark_eos._client.persisted import FORMAT
from spark_eos._client.settings import ClientSettings
from spark_eos._exactly_once.task import write_task
from spark_eos._kafka import cluster
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.offsets import all_group_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._spark import batch_job
from spark_eos.testing import EmbeddedKafka, process_available, spark_session
from support import groups
from support.flow import Flow, consume
from support.members import deadline
from support.mirroring import MirroredFlow
from support.sinks import arguments

DELIVERIES: Final = ("direct", "mirrored", "staged")
BATCH: Final = 30
UNLUCKY: Final = 7
"""The record that becomes a dead letter."""
_FORMATS: Final = Path(__file__).parents[1] / "unit" / "formats"
# Rows reach a task's writer in pieces of `_PIECE` rows; of the second batch, `_PIECES` pieces do.
_PIECE: Final = 5
_PIECES: Final = 5


@dataclass
class Query:
    """A query of one delivery, with a dead-letter topic."""

    flow: Flow
    delivery: str

    @property
    def progress_topic(self) -> str:
        return f"progress-{self.flow.name}"

    @property
    def dead_letter_topic(self) -> str:
        return f"dlq-{self.flow.name}"

    def produce(self, numbers: Iterable[int]) -> None:
        self.flow.produce(numbers, key=lambda number: b"key of %d" % number)

    def run(self, spark: SparkSession) -> list[BatchReport]:
        """Runs the query over everything available; returns its batches' reports."""
        reports: list[BatchReport] = []
        options: dict[str, Any] = {
            **self.flow.options(),
            "delivery": self.delivery,
            "progress_topic": self.progress_topic,
            "progress_partitions": 3,
            "dead_letters": DeadLetters(self.dead_letter_topic),
            "transactions": Transactions(max_records=_PIECE),
            "on_batch": reports.append,
        }
        sink = ExactlyOnceSink(**arguments(**options))
        read = {"maxOffsetsPerTrigger": str(BATCH)}
        frame = sink.read(spark, subscribe=self.flow.source, options=read)
        try:
            process_available(sink.write(self._transformed(frame)), timeout=150)
        finally:
            sink.close()
        return reports

    def _transformed(self, frame: DataFrame) -> DataFrame:
        unlucky = F.col("value").cast("string") == str(UNLUCKY)
        error = F.when(unlucky, F.lit("unlucky")).alias("error")
        rows = frame.select("source", "key", "value", error)
        return rows.repartition(2) if self.delivery == "staged" else rows

    @cached_property
    def ids(self) -> dict[str, str]:
        """Ids of the clusters and topics as they appear in texts, by what they identify."""
        flow = self.flow
        found: dict[str, str] = {}
        clusters = {"cluster": flow.kafka, "source cluster": flow.source_kafka or flow.kafka}
        for name, settings in clusters.items():
            with closing(Connections(ClientSettings(settings))) as connections:
                found[name] = cluster.cluster_id(connections, deadline())
                wanted = [flow.source, flow.target, self.progress_topic, self.dead_letter_topic]
                topics = cluster.topics(connections, wanted, deadline())
                found |= {topic: info.topic_id.hex for topic, info in topics.items()}
        return found


def kept_formats() -> list[int]:
    found = (path for path in _FORMATS.glob("format-*") if path.is_dir())
    return sorted(int(path.name.removeprefix("format-")) for path in found)


def kept_spark(format_number: int) -> str:
    return str(_state(format_number, "direct")["spark"])


def restore(query: Query, format_number: int) -> None:
    """Restores topics, the group's offsets and the checkpoint to their state at the query's end.

    Only the ids of clusters and topics differ, since brokers choose them.
    """
    flow, state = query.flow, _state(format_number, query.delivery)
    flow.broker.create_topic(query.dead_letter_topic, 1)
    if query.delivery != "direct":
        flow.broker.create_topic(query.progress_topic, 3)
    for servers, records in (
        (flow.source_servers, state["source records"]),
        (flow.bootstrap_servers, state["records"]),
    ):
        _produce(servers, records)
    texts = _Rewritten(state["ids"], query.ids)
    offsets = {
        TopicPartition(topic, index): (offset, text)
        for topic, index, offset, text in state["offsets"]
    }
    groups.set_offsets(
        flow.bootstrap_servers,
        flow.group_id,
        {partition: offset for partition, (offset, _) in offsets.items()},
        {partition: texts.of(text) for partition, (_, text) in offsets.items()},
    )
    checkpoint = Path(flow.checkpoint)
    shutil.copytree(_kept(format_number, query.delivery) / "checkpoint", checkpoint)
    for path in (checkpoint / "spark-eos").rglob("*.txt"):
        path.write_text(texts.of(path.read_text()))


def _kept(format_number: int, delivery: str) -> Path:
    return _FORMATS / f"format-{format_number}" / delivery


def _state(format_number: int, delivery: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (_kept(format_number, delivery) / "state.json").read_text(encoding="utf-8")
    )
    return found


def _produce(servers: str, records: Iterable[dict[str, Any]]) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for one in records:
        headers: Any = list(map(tuple, one["headers"]))
        producer.produce(one["topic"], one["value"], one["key"], one["partition"], headers=headers)
    assert producer.flush(30) == 0


class _Rewritten:
    """Texts in which only the ids are replaced."""

    def __init__(self, old: dict[str, str], new: dict[str, str]) -> None:
        assert old.keys() == new.keys()
        # Replace whole ids first, since short ids are their beginnings.
        self._pairs = [(old[name], new[name]) for name in old]
        topics = [(old[name], new[name]) for name in old if not name.endswith("cluster")]
        self._pairs += [(str(uuid.UUID(a)), str(uuid.UUID(b))) for a, b in topics]
        self._short = {a[:8]: b[:8] for a, b in topics}

    def of(self, text: str) -> str:
        for old, new in self._pairs:
            text = text.replace(old, new)
        return re.sub(r"\b[0-9a-f]{8}\b(?!-)", self._shortened, text)

    def _shortened(self, found: "re.Match[str]") -> str:
        return self._short.get(found[0], found[0])


# Keeping --------------------------------------------------------------------------------------


class _Failing:
    """A task that fails when it asks for more pieces than it is allowed."""

    def __init__(self, task: Any, pieces: int) -> None:
        self._task = task
        self._pieces = pieces

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        return iter(self._task(self._first(batches)))

    def _first(self, batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == self._pieces:
                raise RuntimeError("as if it were killed")
            yield batch


def _keep(query: Query, spark: SparkSession, directory: Path) -> None:
    flow = query.flow
    flow.broker.create_topic(query.dead_letter_topic, 1)
    if query.delivery != "direct":
        flow.broker.create_topic(query.progress_topic, 3)
    query.produce(range(BATCH))
    query.run(spark)
    query.produce(range(BATCH, 2 * BATCH))

    def failing(*arguments: Any, **named: Any) -> Any:
        return _Failing(write_task(*arguments, **named), _PIECES)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_job, "write_task", failing)
        with pytest.raises(Exception, match="as if it were killed"):
            query.run(spark)
    with closing(Connections(ClientSettings(flow.kafka))) as connections:
        offsets = all_group_offsets(connections, flow.group_id, deadline())
    state = {
        "spark": pyspark.__version__,
        "ids": query.ids,
        "offsets": [[*place, *one] for place, one in sorted(offsets.items())],
        "source records": _records(flow.source_servers, flow.source),
        "records": [
            *_records(flow.bootstrap_servers, flow.target),
            *_records(flow.bootstrap_servers, query.dead_letter_topic),
        ],
    }
    directory.mkdir(parents=True)
    text = json.dumps(state, indent=1)
    (directory / "state.json").write_text(f"{text}\n", encoding="utf-8")
    # Omit Hadoop's checksums, which Hadoop does not require.
    ignored = shutil.ignore_patterns(".*")
    shutil.copytree(flow.checkpoint, directory / "checkpoint", ignore=ignored)


def _records(servers: str, topic: str) -> list[dict[str, Any]]:
    found = []
    for message in consume(servers, topic):
        headers: Any = message.headers() or ()
        found.append(
            {
                "topic": topic,
                "partition": message.partition(),
                "key": (message.key() or b"").decode(),
                "value": (message.value() or b"").decode(),
                "headers": [[name, content.decode()] for name, content in headers],
            }
        )
    return found


def main() -> None:
    """Saves a query of each delivery in the format that this code writes."""
    directory = _FORMATS / f"format-{FORMAT}"
    if directory.exists():
        sys.exit(f"{directory} is what format {FORMAT} was on its day; it is never made again")
    # Spark's workers import the patched-in function from here.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    with ExitStack() as stack:
        broker, other = (stack.enter_context(EmbeddedKafka()) for _ in range(2))
        # One task writes both partitions, in small pieces.
        config = {"spark.sql.execution.arrow.maxRecordsPerBatch": str(_PIECE)}
        spark = spark_session(master="local[1]", config=config, quick_start=True)
        stack.callback(spark.stop)
        for delivery in DELIVERIES:
            own = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            query = Query(kept_flow(delivery, own, broker, other), delivery)
            _keep(query, spark, directory / delivery)


def kept_flow(delivery: str, own: Path, broker: EmbeddedKafka, other: EmbeddedKafka) -> Flow:
    places = (broker, str(own / "checkpoint"), str(own / "workers"))
    name = f"kept-{delivery}"
    if delivery == "mirrored":
        return MirroredFlow(*places, name=name, other=other)
    return Flow(*places, name=name)


if __name__ == "__main__":
    main()
