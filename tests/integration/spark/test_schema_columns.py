"""Decoding and encoding of a DataFrame's columns, with a real schema registry."""

import json
import logging
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import guarded
from spark_eos._spark.narrow_plan import explained
from spark_eos.errors import (
    CheckpointError,
    ConfigurationError,
    SchemaError,
    UnsupportedPipelineError,
)
from spark_eos.schemas import SchemaRegistry
from spark_eos.testing import EmbeddedSchemaRegistry
from support.connect_server import ConnectService
from support.guid_stub import guid_stub
from support.registry_answers import stub_registry

HEADERS = "array<struct<key: string, value: binary>>"


def record(name: str, **fields: Any) -> str:
    """A record's schema."""
    made = [{"name": field, "type": kind} for field, kind in fields.items()]
    return json.dumps({"type": "record", "name": name, "fields": made})


ORDER = record("shop.Order", id="string", amount="double")
REFUND = record("shop.Refund", order="string")


class Subjects:
    """A test's own subjects, and the records that Confluent's serializers write to their topic."""

    def __init__(self, url: str, client: SchemaRegistryClient) -> None:
        self.url = url
        self.topic = f"t{uuid.uuid4().hex[:8]}"
        self.client = client

    def register(self, name: str, text: str) -> str:
        """Registers a schema; returns the subject."""
        subject = f"{self.topic}-{name}"
        self.client.register_schema(subject, Schema(text, "AVRO"))
        return subject

    def write(self, text: str, value: Any, name: str = "value") -> bytes:
        """A record with its registered schema."""
        self.register(name, text)
        conf = {
            "auto.register.schemas": False,
            "subject.name.strategy": lambda *_: f"{self.topic}-{name}",
        }
        context = SerializationContext(self.topic, MessageField.VALUE)
        return AvroSerializer(self.client, text, conf=conf)(value, context) or b""


@pytest.fixture
def subjects(
    schema_registry: EmbeddedSchemaRegistry, registry_client: SchemaRegistryClient
) -> Subjects:
    return Subjects(schema_registry.url, registry_client)


def frame_of(spark: SparkSession, values: list[Any], kind: str = "value binary") -> DataFrame:
    """A column with these values, in one partition."""
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return spark.createDataFrame(rows, kind).coalesce(1)


@pytest.mark.slow
def test_a_topic_of_several_subjects_is_a_struct_of_them(
    spark: SparkSession, subjects: Subjects
) -> None:
    order = subjects.write(ORDER, {"id": "o1", "amount": 0.5}, "shop.Order")
    refund = subjects.write(REFUND, {"order": "o1"}, "shop.Refund")
    other = subjects.write(record("shop.Other", n="int"), {"n": 1}, "shop.Other")
    values = [order, refund, other, None, refund]
    names = {name: f"{subjects.topic}-shop.{name.title()}" for name in ("order", "refund")}
    registry = SchemaRegistry({"url": subjects.url})
    made = registry.decode(frame_of(spark, values), subject=names, errors="column")
    rows = made.collect()
    assert [row.value and row.value.asDict(recursive=True) for row in rows] == [
        {"order": {"id": "o1", "amount": 0.5}, "refund": None},
        {"order": None, "refund": {"order": "o1"}},
        None,
        None,
        {"order": None, "refund": {"order": "o1"}},
    ]
    errors = [row.error and row.error.message for row in rows]
    assert [text is not None for text in errors] == [False, False, True, False, False]
    assert "it is a shop.Other, not one of shop.Order, shop.Refund" in errors[2]
    back = registry.encode(made, subject=names).collect()
    assert [row.value and bytes(row.value) for row in back] == [order, refund, None, None, refund]


def test_an_error_that_is_there_stays(spark: SparkSession, subjects: Subjects) -> None:
    good = subjects.write(ORDER, {"id": "o1", "amount": 0.5})
    subject = f"{subjects.topic}-value"
    registry = SchemaRegistry({"url": subjects.url})
    values = [(good, None), (good, "mine"), (b"x", "mine"), (b"x", None)]
    structs = [(value, text and ("a.B", text)) for value, text in values]
    given: list[tuple[str, list[Any]]] = [
        ("string", values),
        ("struct<exception: string, message: string>", structs),
    ]
    for type_, own in given:
        texts = registry.decode(
            frame_of(spark, own, f"value binary, error {type_}"), subject=subject, errors="column"
        )
        found = [row.error for row in texts.collect()]
        assert [error and error.message for error in found[:3]] == [None, "mine", "mine"]
        assert "byte 0x78" in found[3].message
        # A guarded function is not called for these either.
        seen = guarded(texts, lambda row: {"value": str(row["value"])}, "value string").collect()
        assert [row.error for row in seen] == found
        assert [row.value is None for row in seen] == [False, True, True, True]
    # Key and value in turn: the first one's error stays.
    both = frame_of(spark, [(b"a", good), (good, b"b"), (b"a", b"b")], "key binary, value binary")
    keyed = registry.decode(both, "key", subject=subject, errors="column")
    errors = [row.error.message for row in registry.decode(keyed, subject=subject).collect()]
    assert ["0x61" in errors[0], "0x62" in errors[1], "0x61" in errors[2]] == [True] * 3
    numbers = frame_of(spark, [(good, 1)], "value binary, error int")
    with pytest.raises(UnsupportedPipelineError, match="`error` is int"):
        registry.decode(numbers, subject=subject, errors="column")


def test_malformed_schemas_and_texts_cost_their_rows(spark: SparkSession) -> None:
    with stub_registry() as stub:
        for subject, text in (("a", ORDER), ("b", '{"type": "array"}')):
            stub.add(subject, text)
        registry = SchemaRegistry({"url": stub.url})
        texts = spark.sql(
            "SELECT CAST(c AS STRING) AS id, 0.5D AS amount FROM VALUES (X'6F31'), "
            "(X'6F32'), (X'636166E9'), (X'6F34') AS t(c)"
        ).coalesce(1)
        encoded = registry.encode(
            texts.select(F.struct("id", "amount").alias("value")), subject="a", errors="column"
        )
        errors = [row.error and row.error.message for row in encoded.collect()]
        assert errors == [None, None, "id: a text is not UTF-8", None]
        records = encoded.select("value").union(frame_of(spark, [b"\0\0\0\0\2x"]))
        *orders, other = registry.decode(records, subject="a", errors="column").collect()
        assert [row.value and row.value.id for row in orders] == ["o1", "o2", None, "o4"]
        assert other.error.message == "schema id 2: the Avro schema can't be used: it lacks 'items'"


def test_nothing_is_registered_unless_asked(spark: SparkSession, subjects: Subjects) -> None:
    registry = SchemaRegistry({"url": subjects.url})
    frame = frame_of(spark, [("o1", 0.5)], "id string, amount double")
    frame = frame.select(F.struct("id", "amount").alias("value"))
    subject = f"{subjects.topic}-value"
    with pytest.raises(SchemaError, match="has no subject"):
        registry.encode(frame, subject=subject)
    with pytest.raises(SchemaError, match="register=True registers it"):
        registry.encode(frame, subject=subject, schema=ORDER)
    text = F.struct("value.id", F.col("value.amount").cast("string").alias("amount"))
    with pytest.raises(SchemaError, match="amount is string"):
        registry.encode(
            frame.select(text.alias("value")), subject=subject, schema=ORDER, register=True
        )
    # The second of two does not fit.
    both = frame.select(F.struct(F.col("value").alias("a"), text.alias("b")).alias("value"))
    names = {"a": subject, "b": f"{subject}-b"}
    with pytest.raises(SchemaError, match=rf"amount is string.*{subject}-b"):
        registry.encode(both, subject=names, schema=dict.fromkeys(names, ORDER), register=True)
    # The second of two has no schema yet, and none is given.
    with pytest.raises(SchemaError, match=f"has no subject '{subject}-b'"):
        registry.encode(both, subject=names, schema={"a": ORDER}, register=True)
    assert subject not in subjects.client.get_subjects()
    (row,) = registry.encode(frame, subject=subject, schema=ORDER, register=True).collect()
    assert bytes(row.value) == subjects.write(ORDER, {"id": "o1", "amount": 0.5})
    subjects.client.set_compatibility(subject, "BACKWARD")
    more = record("shop.Order", id="string", amount="double", more="string")
    wider = frame.select(F.struct("value.*", F.lit("x").alias("more")).alias("value"))
    with pytest.raises(SchemaError, match=f"'{subject}' does not accept the schema"):
        registry.encode(wider, subject=subject, schema=more, register=True)
    assert subjects.client.get_versions(subject) == [1]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("JSON", '{"type": "object", "properties": {"id": {"type": "string"}}}'),
        ("PROTOBUF", 'syntax = "proto3"; message Order { string id = 1; }'),
    ],
)
def test_a_schema_that_is_given_has_a_kind(
    spark: SparkSession, subjects: Subjects, kind: str, text: str
) -> None:
    registry, subject = SchemaRegistry({"url": subjects.url}), f"{subjects.topic}-{kind}"
    frame = spark.sql("SELECT named_struct('id', 'a') AS value")
    rows = registry.encode(frame, subject=subject, schema=text, kind=kind, register=True)
    read = registry.decode(rows, schema=text, kind=kind)
    assert [row.value.id for row in read.collect()] == ["a"]
    with pytest.raises(SchemaError):
        registry.decode(rows, schema=text)


def test_columns_that_do_not_fit_are_refused_at_once(
    spark: SparkSession, subjects: Subjects
) -> None:
    subject = subjects.register("value", ORDER)
    registry = SchemaRegistry({"url": subjects.url})
    frame = frame_of(spark, [("o1", "much")], "id string, amount string")
    value = F.struct("id", "amount").alias("value")
    with pytest.raises(
        SchemaError, match=rf"`value`: amount is string.*needs double.*'{subject}', version 1"
    ):
        registry.encode(frame.select(value), subject=subject)
    with pytest.raises(ConfigurationError, match="no column 'value'; the columns are id, amount"):
        registry.encode(frame, subject=subject)
    with pytest.raises(ConfigurationError, match="only a binary column can be decoded"):
        registry.decode(frame.select(value), subject=subject)
    mapped = frame.select(value, F.create_map(F.lit("a"), F.lit("b")).alias("headers"))
    with pytest.raises(ConfigurationError, match="`headers` is map<string,string>"):
        registry.encode(mapped, subject=subject)
    twice = frame.select(value, value)
    with pytest.raises(ConfigurationError, match="more than one `value` column"):
        registry.encode(twice, subject=subject)
    for code in (registry.decode, registry.encode):
        with pytest.raises(ConfigurationError, match="is empty: name at least one"):
            code(frame_of(spark, [b"x"]), subject={})


@pytest.mark.parametrize("given", [{"version": 3}, {"pinned": "checkpoints/a"}], ids=str)
def test_a_version_beside_a_schema_is_refused(
    spark: SparkSession, subjects: Subjects, given: dict[str, Any]
) -> None:
    registry, (name,) = SchemaRegistry({"url": subjects.url}), given
    for code in (registry.decode, registry.encode):
        with pytest.raises(ConfigurationError, match=f"^{name} .*leave one of the two out"):
            code(frame_of(spark, [b"x"]), subject="a-value", schema=ORDER, **given)


def _pinned(
    spark: SparkSession, subjects: Subjects, location: str, caplog: pytest.LogCaptureFixture
) -> None:
    subject = subjects.register("value", ORDER)
    registry = SchemaRegistry({"url": subjects.url})
    frame = frame_of(spark, [b"x"])

    def fields(version: int | str | None = None, pinned: str | None = location) -> Any:
        made = registry.decode(frame, subject=subject, version=version, pinned=pinned)
        return made.schema["value"].dataType.fieldNames()  # type: ignore[attr-defined]

    assert fields() == ["id", "amount"]
    newer = json.loads(ORDER)
    newer["fields"].append({"name": "more", "type": "int", "default": 0})
    subjects.register("value", json.dumps(newer))
    with caplog.at_level(logging.WARNING, "spark_eos.schemas"):
        assert fields() == ["id", "amount"]
    (said,) = [text for text in caplog.messages if "EOS67" in text]
    assert f"subject {subject} has version 2, but the query stays with version 1" in said
    assert "pass version=2 once" in said
    assert fields(pinned=None) == ["id", "amount", "more"]
    assert fields(2) == fields() == fields("latest") == ["id", "amount", "more"]
    assert fields(1) == fields() == ["id", "amount"]
    with pytest.raises(ConfigurationError, match="version is 'newest'"):
        fields("newest")


def test_a_restart_has_the_columns_that_the_query_has_begun_with(
    spark: SparkSession, subjects: Subjects, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _pinned(spark, subjects, str(tmp_path / "check point"), caplog)
    assert (tmp_path / "check point" / "spark-eos" / "schemas").is_dir()


@pytest.mark.slow
def test_a_pins_id_is_looked_up_in_the_registry_that_is_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    with stub_registry() as one, stub_registry() as other:
        one.add("a-value", ORDER)
        first, second = (SchemaRegistry({"url": stub.url}) for stub in (one, other))
        frame, pinned = frame_of(spark, [b"x"]), str(tmp_path)
        value = frame.select(
            F.struct(F.lit("o1").alias("id"), F.lit(0.5).cast("double").alias("amount")).alias(
                "value"
            )
        )

        def both(registry: SchemaRegistry, version: str | None = None) -> list[int]:
            """The ids of both pins."""
            registry.decode(frame, subject="a-value", pinned=pinned, version=version)
            made = registry.encode(value, subject="a-value", pinned=pinned, version=version)
            return [int.from_bytes(row.value[1:5], "big") for row in made.collect()]

        assert both(first) == [1]
        with pytest.raises(CheckpointError, match=rf"id 1 at {one.url}, but at {other.url} no"):
            both(second)
        other.add("b-value", REFUND)
        other.add("a-value", ORDER)
        with pytest.raises(
            CheckpointError, match=r"another schema has this id.*pass version= once"
        ):
            both(SchemaRegistry({"url": other.url}))
        moved = SchemaRegistry({"url": other.url})
        assert both(moved, "latest") == both(moved) == [2]
        with pytest.raises(CheckpointError, match="pinned in"):
            both(first)


@pytest.mark.slow
def test_ids_are_those_of_the_subjects_context(spark: SparkSession, tmp_path: Path) -> None:
    price, quantity = ({"name": name, "type": "long"} for name in ("price", "quantity"))
    written, other = (
        json.dumps({"type": "record", "name": "Order", "fields": fields})
        for fields in ([quantity, price], [price, quantity])
    )
    with stub_registry() as stub:
        stub.add("orders-value", other)
        stub.add(":.staging:orders-value", written)
        stub.add(":.staging:refunds-value", REFUND)
        registry = SchemaRegistry({"url": stub.url})
        frame = frame_of(spark, [b"\x00\x00\x00\x00\x01\x0e\x06", b"\x00\x00\x00\x00\x02\x02a"])
        names = {name: f":.staging:{name}s-value" for name in ("order", "refund")}
        order, refund = {"quantity": 7, "price": 3}, {"order": "a"}
        # The second time by the pins.
        for _ in range(2):
            made = registry.decode(frame, subject=names, pinned=str(tmp_path), errors="column")
            assert [row.value.asDict(recursive=True) for row in made.collect()] == [
                {"order": order, "refund": None},
                {"order": None, "refund": refund},
            ]
            for given in ({}, {"schema": written, "pinned": None}):
                own: Any = {"subject": names["order"], "pinned": str(tmp_path), **given}
                first, _ = registry.decode(frame, errors="column", **own).collect()
                assert first.value.asDict() == order
        with pytest.raises(ConfigurationError, match="are in several contexts"):
            registry.decode(frame, subject={"a": "orders-value", "b": names["refund"]})


def test_subjects_of_one_record_name_are_refused(spark: SparkSession, subjects: Subjects) -> None:
    names = {name: subjects.register(name, ORDER) for name in ("one", "other")}
    registry = SchemaRegistry({"url": subjects.url})
    with pytest.raises(SchemaError, match=r"more than one subject has records named 'shop\.Order'"):
        registry.decode(frame_of(spark, [b"x"]), subject=names)


def test_secrets_are_in_no_plan(spark: SparkSession, subjects: Subjects) -> None:
    subject = subjects.register("value", ORDER)
    registry = SchemaRegistry({"url": subjects.url, "basic.auth.user.info": "alice:sesame"})
    made = registry.decode(frame_of(spark, [b"x"]), subject=subject)
    plans = [*explained(made).values(), made.schema.json()]
    assert len(plans) == 5
    assert "sesame" not in "".join(plans)
    frame: Any = made
    assert "sesame" not in frame._jdf.queryExecution().analyzed().toJSON()


def test_ids_in_headers_are_read_and_written_like_confluents(
    spark: SparkSession, subjects: Subjects
) -> None:
    subject = subjects.register("value", ORDER)
    with guid_stub(subjects.url) as stub, SchemaRegistryClient({"url": stub.url}) as client:
        headers: list[Any] = [("a", b"1")]
        context = SerializationContext("orders", MessageField.VALUE, headers)
        conf = {
            "schema.id.serializer": header_schema_id_serializer,
            "use.latest.version": True,
            "auto.register.schemas": False,
            "subject.name.strategy": lambda *_: subject,
        }
        value = {"id": "o1", "amount": 0.5}
        theirs = AvroSerializer(client, ORDER, conf=conf)(value, context)
        registry = SchemaRegistry({"url": stub.url})
        rows = [(theirs, headers), (None, [("a", b"2")])]
        frame = frame_of(spark, rows, f"value binary, headers {HEADERS}")
        made = registry.decode(frame, subject=subject)
        assert [row.value and row.value.asDict() for row in made.collect()] == [value, None]
        # With a header again, and with a prefix, beside which the old header must not stay.
        again = registry.encode(made, subject=subject, framing="header").collect()
        assert [row.value and bytes(row.value) for row in again] == [theirs, None]
        kept = [[(h.key, bytes(h.value)) for h in row.headers] for row in again]
        assert kept == [headers, [("a", b"2")]]
        again_headers: Any = kept[0]
        read = SerializationContext("orders", MessageField.VALUE, again_headers)
        assert AvroDeserializer(client)(bytes(again[0].value), read) == value
        prefixed = registry.encode(made, subject=subject).collect()
        assert bytes(prefixed[0].value) == subjects.write(ORDER, value)
        assert [[(h.key, bytes(h.value)) for h in row.headers] for row in prefixed] == [
            [("a", b"1")],
            [("a", b"2")],
        ]
        # Keys have a header of their own, and the column is added.
        key = made.select(F.col("value").alias("key"))
        (one, none) = registry.encode(key, "key", subject=subject, framing="header").collect()
        assert [h.key for h in one.headers] == ["__key_schema_id"]
        assert none.headers is None


def test_a_registry_without_guids_writes_no_headers(
    spark: SparkSession, subjects: Subjects
) -> None:
    subject = subjects.register("value", ORDER)
    value = F.struct(F.lit("o1").alias("id"), F.lit(0.5).cast("double").alias("amount"))
    frame = spark.range(1).select(value.alias("value"))
    with pytest.raises(ConfigurationError, match="the registry has none: use 'prefix'"):
        SchemaRegistry({"url": subjects.url}).encode(frame, subject=subject, framing="header")


def _columns_on_connect(spark: SparkSession, url: str, subject: str, location: str) -> list[Any]:
    """Decoded twice on Connect: with version 1 pinned, and with the pin read again."""
    registry = SchemaRegistry({"url": url})
    frame = spark.createDataFrame([(b"x",)], "value binary")
    found: list[Any] = []
    for version in (1, None):
        made = registry.decode(frame, subject=subject, pinned=location, version=version)
        found.append(made.schema["value"].dataType.simpleString())
    return found


@pytest.mark.slow
def test_pins_on_connect(
    connect_service: ConnectService, subjects: Subjects, tmp_path: Path
) -> None:
    subject = subjects.register("value", ORDER)
    newer = json.loads(ORDER)
    newer["fields"].append({"name": "more", "type": "int", "default": 0})
    subjects.register("value", json.dumps(newer))
    found = connect_service.queries.ask(
        _columns_on_connect, subjects.url, subject, str(tmp_path / "pins")
    )
    assert found == ["struct<id:string,amount:double>"] * 2


def test_a_refused_version_is_not_pinned(
    spark: SparkSession, subjects: Subjects, tmp_path: Path
) -> None:
    """The next start still has the version that the query has begun with."""
    subject, registry = subjects.register("value", ORDER), SchemaRegistry({"url": subjects.url})
    frame, own = frame_of(spark, [b"x"]), {"subject": subject, "pinned": str(tmp_path)}
    before = registry.decode(frame, **own).schema
    newer = json.loads(ORDER)
    newer["fields"].append({"name": "more", "type": "int", "default": 0})
    subjects.register("value", json.dumps(newer))
    with pytest.raises(ConfigurationError, match="message is 'other'"):
        registry.decode(frame, version=2, message="other", **own)
    assert registry.decode(frame, **own).schema == before
