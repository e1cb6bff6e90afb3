"""A task of the sink encodes its rows itself if nothing follows `encode`."""

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import DeadLetters, ExactlyOnceSink
from spark_eos._exactly_once.task import write_task
from spark_eos._spark import batch_job
from spark_eos.errors import UnsupportedPipelineError
from spark_eos.schemas import SchemaRegistry
from spark_eos.testing import EmbeddedSchemaRegistry
from support.dead_letters import create_dead_letter_topic
from support.flow import Flow
from support.guid_stub import GuidStub, guid_stub
from support.mirroring import MirroredFlow
from support.queries import run_available
from support.sinks import arguments

KEY = json.dumps({"type": "record", "name": "Key", "fields": [{"name": "of", "type": "string"}]})
ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})


@pytest.fixture
def guids(schema_registry: EmbeddedSchemaRegistry) -> Iterator[GuidStub]:
    with guid_stub(schema_registry.url) as stub:
        yield stub


@dataclass(frozen=True)
class Encoded:
    """Queries that encode key and value, and what they have written."""

    spark: SparkSession
    client: SchemaRegistryClient
    rows: Callable[[DataFrame], DataFrame]

    def run(
        self,
        flow: Flow,
        then: Callable[[DataFrame], DataFrame] = lambda rows: rows,
        function: Callable[[ExactlyOnceSink, DataFrame, int], None] | None = None,
        **options: Any,
    ) -> int:
        """Runs a query over everything available; returns the number of Spark's Python steps."""
        given = arguments(**{**flow.options(), **options})
        with contextlib.closing(ExactlyOnceSink(**given)) as sink:
            writer = sink.write(then(self.rows(sink.read(self.spark, subscribe=flow.source))))
            if function is not None:
                writer = writer.foreachBatch(lambda rows, number: function(sink, rows, number))
            query = writer.trigger(availableNow=True).start()
            assert query.awaitTermination(240)
            with contextlib.redirect_stdout(io.StringIO()) as text:
                query.explain()
        return text.getvalue().count("MapInArrow ")

    def written(self, flow: Flow) -> list[tuple[str, int]]:
        read = AvroDeserializer(self.client)

        def decoded(message: Message, part: bytes | None, field: MessageField) -> Any:
            return read(part, SerializationContext(flow.target, field, message.headers()))

        return sorted(
            (
                decoded(m, m.key(), MessageField.KEY)["of"],
                decoded(m, m.value(), MessageField.VALUE)["id"],
            )
            for m in flow.written()
        )


@pytest.fixture
def encoded(flow: Flow, guids: GuidStub, spark_eos_session: SparkSession) -> Iterator[Encoded]:
    """The id is the value's number, and null if the value is no number."""
    subjects = {"key": f"{flow.target}-key", "value": f"{flow.target}-value"}
    registry = SchemaRegistry({"url": guids.url})

    def encode(frame: DataFrame) -> DataFrame:
        text = F.col("value").cast("string")
        of = F.struct(F.concat(F.lit("order "), text).alias("of")).alias("key")
        value = F.struct(F.expr("try_cast(cast(value as string) as bigint)").alias("id"))
        made = frame.select("source", of, value.alias("value"), F.lit(1).alias("other"))
        for column, framing in (("key", "header"), ("value", "prefix")):
            made = registry.encode(made, column, subject=subjects[column], framing=framing)
        return made

    with SchemaRegistryClient({"url": guids.url}) as client:
        for column, schema in (("key", KEY), ("value", ORDER)):
            client.register_schema(subjects[column], Schema(schema, "AVRO"))
        yield Encoded(spark_eos_session, client, encode)


def _expected(*numbers: int) -> list[tuple[str, int]]:
    return sorted((f"order {number}", number) for number in numbers)


def test_the_sinks_tasks_encode(flow: Flow, encoded: Encoded) -> None:
    flow.produce(range(10))
    assert encoded.run(flow) == 0
    assert encoded.written(flow) == _expected(*range(10))
    # The name of each schema is in the headers or in front of the record.
    headers: list[Any] = [m.headers() for m in flow.written()]
    assert [[name for name, _ in each] for each in headers] == [["__key_schema_id"]] * 10
    # A row that can't be encoded is named, and the query continues from there.
    flow.produce(["no number"], partition=1)
    words = rf"SchemaError: {flow.source}-1, offset 5: .*id"
    with pytest.raises(StreamingQueryException, match=words):
        encoded.run(flow)
    assert flow.committed() == {0: 5, 1: 5}
    assert len(flow.written()) == 10


def test_a_second_write_does_not_change_the_steps_of_an_active_query(
    flow: Flow, encoded: Encoded
) -> None:
    """The query has had no batch yet."""
    with contextlib.closing(ExactlyOnceSink(**flow.options())) as sink:
        rows = encoded.rows(sink.read(encoded.spark, subscribe=flow.source))
        query = sink.write(rows).start()
        again = sink.write(rows)
        with pytest.raises(UnsupportedPipelineError, match="is active"):
            again.start()
        flow.produce(range(4))
        query.processAllAvailable()
        query.stop()
    assert encoded.written(flow) == _expected(*range(4))


def test_tasks_import_nothing_of_the_drivers_side(
    flow: Flow, spark_eos_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[bytes] = []

    def noting(*arguments: Any, **named: Any) -> Any:
        made = write_task(*arguments, **named)
        tasks.append(cloudpickle.dumps(made))  # type: ignore[no-untyped-call]
        return made

    monkeypatch.setattr(batch_job, "write_task", noting)
    flow.produce(range(2))
    run_available(spark_eos_session, flow)
    script = "import pickle, sys; pickle.load(sys.stdin.buffer); print(*sys.modules)"
    command = [sys.executable, "-c", script]
    loaded = subprocess.run(command, input=tasks[0], capture_output=True, check=True)
    modules = loaded.stdout.decode().split()
    assert "spark_eos._exactly_once.task" in modules
    assert {"spark_eos._exactly_once.batch", "spark_eos._spark.batch_job", "rich"} & {
        *modules
    } == set()


@pytest.mark.slow
def test_a_mirrored_querys_tasks_encode(mirrored_flow: MirroredFlow, encoded: Encoded) -> None:
    mirrored_flow.produce(range(10))
    assert encoded.run(mirrored_flow) == 0
    assert encoded.written(mirrored_flow) == _expected(*range(10))


@pytest.mark.slow
def test_spark_encodes_what_the_sink_does_not_receive(flow: Flow, encoded: Encoded) -> None:
    """With dead letters, with a function of the user's own, and with a step after `encode`."""
    flow.produce([*range(10), "no number"])
    dlq = create_dead_letter_topic(flow)
    assert encoded.run(flow, dead_letters=DeadLetters(dlq)) == 2
    assert [m.value() for m in flow.written(dlq)] == [b"no number"]
    seen: list[str] = []

    def function(sink: ExactlyOnceSink, rows: DataFrame, batch_id: int) -> None:
        seen.append(rows.schema["value"].dataType.simpleString())
        sink(rows, batch_id)

    flow.produce(range(10, 20))
    assert encoded.run(flow, function=function) == 2
    assert seen == ["binary"]
    # A later step follows on the encoded column.
    flow.produce(range(20, 30))
    assert encoded.run(flow, lambda rows: rows.where("true or other > 1")) == 2
    assert encoded.written(flow) == _expected(*range(30))


@pytest.mark.slow
def test_a_query_that_began_as_staged_stages_encoded_rows(flow: Flow, encoded: Encoded) -> None:
    flow.produce(range(10))
    assert encoded.run(flow, delivery="staged") == 2
    # The stream could be direct, but the query stays staged.
    flow.produce(range(10, 20))
    assert encoded.run(flow) == 0
    assert encoded.written(flow) == _expected(*range(20))
    flow.produce(["no number"], partition=0)
    words = rf"SchemaError: {flow.source}-0, offset 10: .*id"
    with pytest.raises(StreamingQueryException, match=words):
        encoded.run(flow)
