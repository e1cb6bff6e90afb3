"""The jobs in jobs/, run with spark-submit as users run them."""

import json
import os
import signal
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from demo.orders import make_orders
from spark_eos.jobs.job import run_job
from spark_eos.jobs.options import JobOptions
from spark_eos.jobs.schema_options import Recoding
from spark_eos.schemas import SchemaRegistry
from spark_eos.testing import EmbeddedSchemaRegistry
from spark_eos.testing.broker_properties import free_ports
from support.dead_letters import create_dead_letter_topic
from support.error_classes import without_address
from support.flow import Flow
from support.jobs import job, submit
from support.mirroring import MirroredFlow
from support.queries import relay, until

# Through spark-submit -----------------------------------------------------------------------------


def arguments(flow: Flow) -> list[str]:
    return [
        *("--bootstrap-servers", flow.bootstrap_servers),
        *("--group-id", flow.group_id),
        *("--source", flow.source),
        *("--target", flow.target),
        *("--checkpoint-location", flow.checkpoint),
    ]


@pytest.mark.slow
def test_enrich_orders_job(flow: Flow) -> None:
    orders = [value for _key, value in make_orders(1_000, seed=3)]
    flow.produce([*orders[:500], b"{", *orders[500:], None])
    rejected = f"rejected-{flow.name}"
    flow.broker.create_topic(rejected)
    dead_letter_options = ("--dead-letter-topic", rejected, "--max-dead-letters", "2")
    options = ["--available-now", *dead_letter_options, "--kafka", "compression.type=zstd"]
    with submit("enrich_orders", *arguments(flow), *options) as process:
        out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    assert f"group_id={flow.group_id} batch_id=0 " in out
    expected = {
        order["order_id"]: order["customer_id"]
        for order in map(json.loads, orders)
        if order["status"] != "cancelled"
    }
    written = flow.written()
    assert len(written) == len(expected) < 1_000
    found = {json.loads(m.value() or b"")["order_id"]: (m.key() or b"").decode() for m in written}
    assert found == expected
    assert sorted(m.value() or b"" for m in flow.written(rejected)) == [b"", b"{"]
    assert not flow.members()


def _served(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.2:{port}/metrics", timeout=60) as answer:
            return str(answer.read().decode())
    except OSError:  # not yet
        return ""


@pytest.mark.slow
def test_relay_job_copies_all_of_a_record_until_sigterm(flow: Flow) -> None:
    # Not too long ago, or the broker's retention has it deleted.
    timestamp = int(time.time() * 1000) - 3_600_000
    flow.produce(["a", None], key=b"k", headers=[("h", b"1"), ("h", None)], timestamp=timestamp)
    port = free_ports().client
    served = ["--metrics-port", str(port), "--metrics-address", "127.0.0.2"]
    seen = ["--log-format", "json", *served]
    with submit("relay", *arguments(flow), "--trigger", "200 milliseconds", *seen) as process:
        until(lambda: flow.committed() == {0: 1, 1: 1}, lambda: "two records")
        assert len(flow.members()) == 1
        rows = f'spark_eos_rows_written_total{{group_id="{flow.group_id}"'
        until(lambda: rows in _served(port), lambda: "metrics")
        # By the job's listener, from Spark's progress.
        lag = f'spark_eos_source_lag_records{{group_id="{flow.group_id}"'
        until(lambda: lag in _served(port), lambda: "the lag")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=240)
    assert process.returncode == 143
    assert "Traceback" not in out
    documents = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    batches = [d for d in documents if d.get("event") == "batch"]
    assert sum(batch["rows_written"] for batch in batches) == 2
    written = flow.written()
    assert sorted(m.value() or b"" for m in written) == [b"", b"a"]
    for message in written:
        assert message.key() == b"k"
        assert message.headers() == [("h", b"1"), ("h", None)]
        assert message.timestamp() == (TIMESTAMP_CREATE_TIME, timestamp)
    # Sooner than any session timeout: they have left.
    until(lambda: not flow.members(), lambda: "members leave", 5)


@pytest.mark.slow
def test_relay_job_copies_from_cluster_to_cluster(
    new_mirrored_flow: Callable[..., MirroredFlow],
) -> None:
    flow = new_mirrored_flow(partitions=3)
    # The same name in both clusters, and no key: each record stays in its partition all the same.
    flow.broker.create_topic(flow.source, 3)
    flow.produce(range(30_000))
    given = [
        *("--source-bootstrap-servers", flow.source_servers),
        *("--bootstrap-servers", flow.bootstrap_servers),
        *("--group-id", flow.group_id),
        *("--source", flow.source, "--target", flow.source, "--keep-partitions"),
        *("--checkpoint-location", flow.checkpoint),
        *("--max-offsets-per-trigger", "3000", "--trigger", "100 milliseconds"),
    ]
    with submit("relay", *given) as process:
        until(lambda: sum(flow.committed().values()) > 6_000, lambda: "some records", 240)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=240)
    with submit("relay", *given[:-2], "--available-now") as process:
        out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    copied = flow.written(flow.source)
    assert [(m.partition(), int(m.value() or b"")) for m in copied] == [
        (partition, number) for partition in range(3) for number in range(partition, 30_000, 3)
    ]
    assert flow.open_transactions() == []


@pytest.mark.slow
def test_relay_job_writes_with_the_schemas_of_the_target(
    flow: Flow, schema_registry: EmbeddedSchemaRegistry, tmp_path: Path
) -> None:
    avro = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    text = {"properties": {"id": {"type": "integer"}}, "required": ["id"], "title": "Order"}
    subjects = f"{flow.source}-value", f"{flow.target}-value"
    with SchemaRegistryClient({"url": schema_registry.url}) as client:
        write = AvroSerializer(client, json.dumps(avro))
        context = SerializationContext(flow.source, MessageField.VALUE)
        orders = [write({"id": number}, context) for number in range(100)]
        number = client.register_schema(subjects[1], Schema(json.dumps(text), "JSON"))
    flow.produce([*orders, b"{"], key=b"k", headers=[("h", b"1")])
    rejected = create_dead_letter_topic(flow)
    settings = tmp_path / "registry.conf"
    settings.write_text(f"url={schema_registry.url}\n")
    options = [
        *("--schema-registry-config", str(settings), "--available-now"),
        *("--source-schema-registry", f"url={schema_registry.url}"),
        *("--source-value-subject", subjects[0], "--value-subject", subjects[1]),
    ]
    dead_letter_options = ("--dead-letter-topic", rejected)
    with submit("relay", *arguments(flow), *options, *dead_letter_options) as process:
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    prefix = struct.pack(">bI", 0, number)
    assert sorted(m.value() or b"" for m in flow.written()) == sorted(
        prefix + b'{"id":%d}' % one for one in range(100)
    )
    assert {(m.key(), *(m.headers() or ())) for m in flow.written()} == {(b"k", ("h", b"1"))}
    assert [m.value() for m in flow.written(rejected)] == [b"{"]


@pytest.mark.slow
def test_spark_submit_distinguishes_bad_input_from_success(flow: Flow) -> None:
    with submit("relay", *arguments(flow), "--kafka", "no.such.setting=1") as process:
        out, _ = process.communicate(timeout=240)
    assert process.returncode == 2
    assert without_address(out).endswith(
        "Error: kafka['no.such.setting']: No such configuration property: \"no.such.setting\"\n"
    )


# Errors, in this process's session ----------------------------------------------------------------


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Restores the signal handlers that a job replaces."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def job_options(flow: Flow, **changes: Any) -> JobOptions:
    given = {
        "kafka": flow.kafka,
        "group_id": flow.group_id,
        "source": flow.source,
        "target": flow.target,
        "checkpoint_location": flow.checkpoint,
        "trigger": {"availableNow": True},
        "starting_offsets": "earliest",
        "source_options": {},
    }
    return JobOptions(**{**given, **changes})


def in_topic(name: str) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: relay(frame).withColumn("topic", F.lit(name))


@pytest.mark.slow
@pytest.mark.usefixtures("own_signals")
def test_relay_without_dead_letters_ends_at_an_unreadable_record(
    flow: Flow, spark_eos_session: SparkSession, schema_registry: EmbeddedSchemaRegistry
) -> None:
    registry = SchemaRegistry({"url": schema_registry.url})
    subject = f"{flow.source}-value"
    with SchemaRegistryClient({"url": schema_registry.url}) as client:
        client.register_schema(subject, Schema('"string"', "AVRO"))
    flow.produce([b"{"])
    recoding = Recoding(registry, registry, {"value": (subject, subject)})
    transform = partial(job("relay").relay, recoding=recoding)
    with pytest.raises(click.ClickException, match="offset 0: the value begins with byte 0x7b"):
        run_job(
            job_options(flow),
            transform,
            include_headers=True,
            session=lambda: spark_eos_session,
        )
    assert flow.written() == []


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize(
    ("changes", "transform", "message"),
    [
        ({"source": "no-such-topic"}, relay, "source topic no-such-topic does not exist"),
        ({"target": "no-such-topic"}, relay, "target topic 'no-such-topic' does not exist"),
        ({}, lambda frame: frame.select("source"), "there is no `value` column"),
        # Nobody waits for a topic with such a name to be created.
        ({}, in_topic("no topic's name"), "no topic can have such a name"),
    ],
)
def test_known_errors_are_messages(
    flow: Flow,
    spark_eos_session: SparkSession,
    changes: dict[str, Any],
    transform: Callable[[DataFrame], DataFrame],
    message: str,
) -> None:
    flow.produce(["a"])
    with pytest.raises(click.ClickException) as caught:
        run_job(job_options(flow, **changes), transform, session=lambda: spark_eos_session)
    assert message in caught.value.message
    assert caught.value.exit_code == 1
    assert "Traceback" not in caught.value.message
