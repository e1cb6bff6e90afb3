"""Random schemas and defaults are resolved like in Avro's own Java library."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyspark
import pytest
from py4j.java_gateway import JavaGateway

from spark_eos._jars.java import find_java
from spark_eos.schemas.formats import Schema
from support.random_schemas import RandomSchemas
from support.schema_codecs import read, write

SEEDS = range(1000)


def _in_java(jvm: Any, writer: str, reader: str, payload: bytes) -> bytes:
    avro = jvm.org.apache.avro
    before, after = (avro.Schema.Parser().parse(text) for text in (writer, reader))
    source = avro.io.DecoderFactory.get().binaryDecoder(payload, None)
    datum = avro.generic.GenericDatumReader(before, after).read(None, source)
    out = jvm.java.io.ByteArrayOutputStream()
    target = avro.io.EncoderFactory.get().binaryEncoder(out, None)
    avro.generic.GenericDatumWriter(after).write(datum, target)
    target.flush()
    return bytes(out.toByteArray())


@pytest.fixture
def jvm() -> Iterator[Any]:
    """A Java with PySpark's jars, Avro's among them, without Spark."""
    jars = Path(pyspark.__file__).parent / "jars"
    (py4j,) = map(str, jars.glob("py4j-*.jar"))
    gateway = JavaGateway.launch_gateway(
        jarpath=py4j,
        classpath=f"{jars}/*",
        java_path=str(find_java().executable),
        die_on_exit=True,
        # The fast reader fails on defaults that are empty arrays in a union.
        javaopts=["-Dorg.apache.avro.fastread=false"],
    )
    yield gateway.jvm
    gateway.shutdown()


@pytest.mark.slow
def test_random_schemas_are_resolved_as_in_java(jvm: Any) -> None:
    for seed in SEEDS:
        made = RandomSchemas(seed)
        kept, added = made.fields(3), made.fields(3, "g")
        before = {"type": "record", "name": "Top", "fields": kept}
        after = {"type": "record", "name": "Top", "fields": [*added, *made.some(kept)]}
        writer, reader = json.dumps(before), json.dumps(after)
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(before), made.value(before))
        payload = stream.getvalue()
        expected = _in_java(jvm, writer, reader, payload)
        own = Schema("AVRO", reader)
        found = read([payload], Schema("AVRO", writer), own)
        assert found.errors == {}, (seed, writer, reader)
        written = write(found.array, own)
        assert written.errors == {}, (seed, writer, reader)
        assert written.array.to_pylist() == [expected], (seed, writer, reader, payload)


@pytest.mark.slow
def test_a_fixeds_default_has_its_size_as_in_java(jvm: Any) -> None:
    kept = {"name": "a", "type": "int"}
    fixed = {"type": "fixed", "name": "F", "size": 2}
    for kind in (fixed, [fixed, "bytes"], ["bytes", fixed], ["null", fixed]):
        for default in ("", "a", "ab", "\u00ff\u00fe\u00fd"):
            added = {"name": "f", "type": kind, "default": default}
            writer, reader = (
                json.dumps({"type": "record", "name": "Top", "fields": fields})
                for fields in ([kept], [kept, added])
            )
            expected = _in_java(jvm, writer, reader, b"\2")
            found = read([b"\2"], Schema("AVRO", writer), Schema("AVRO", reader))
            written = write(found.array, Schema("AVRO", reader))
            assert written.array.to_pylist() == [expected], (kind, default)
