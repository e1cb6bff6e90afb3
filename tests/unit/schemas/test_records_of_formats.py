"""What tells the members of a column apart: the names of a batch's records."""

import json

import fastavro
import jsonschema_rs
import pyarrow as pa
import pytest

from spark_eos.schemas import protobuf
from spark_eos.schemas.formats import Schema, format_of

SCHEMAS = {
    "AVRO": json.dumps({"type": "record", "name": "shop.Order", "fields": []}),
    "JSON": json.dumps({"title": "shop.Order", "properties": {"a": {"type": "string"}}}),
    "PROTOBUF": 'syntax = "proto3"; package shop; message Order {}',
}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_schema_is_parsed_once_for_many_batches(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names() -> list[str]:
        found = format_of(own).records(pa.array([b"\x00"] * 3, pa.binary()))
        assert [rows.tolist() for rows in found.values()] == [[0, 1, 2]]
        return [*found]

    own = Schema(kind, SCHEMAS[kind])
    assert names() == ["shop.Order"]
    for module, name in (
        (fastavro, "parse_schema"),
        (jsonschema_rs, "Registry"),
        (protobuf, "file_of"),
    ):
        monkeypatch.delattr(module, name)
    assert names() == ["shop.Order"]
