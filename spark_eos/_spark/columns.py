"""Checks the columns that a query writes."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import types as T

from spark_eos._worker.dead_letters import ERROR
from spark_eos.errors import UnsupportedPipelineError

_BYTES = (T.BinaryType, T.StringType)
PLACE: Final[dict[str, tuple[type[T.DataType], ...]]] = {
    "topic": (T.StringType,),
    "partition": (T.IntegerType,),
    "offset": (T.LongType,),
}
"""The fields of ``source`` that say where a row comes from."""
_OPTIONAL: dict[str, tuple[tuple[type[T.DataType], ...], str]] = {
    "key": (_BYTES, "binary or string"),
    "topic": ((T.StringType,), "string"),
    "partition": ((T.IntegerType,), "int"),
    "timestamp": ((T.TimestampType,), "timestamp"),
}

_ONLY_STAGED: Final = "to stage a query without the column, set delivery='staged'"
_HEADERS: Final = "array<struct<key:string,value:binary>>"

SOURCES_OWN: Final = {"spark-eos": "source"}
"""Metadata that marks a `topic` column as the source's own, unchanged."""
SOURCE: Final = "source"
"""The column that holds a row's position."""
LETTER_FIELDS: Final = ("key", "value", "headers", "timestamp", ERROR)
"""Further fields of ``source`` if it carries the record that a dead letter is made from."""

_PAYLOAD: Final = {"value", "headers", *_OPTIONAL}
WRITTEN: Final = {SOURCE, *_PAYLOAD}
"""The columns that are written, plus ``source``."""


def header_type_fits(data_type: T.DataType) -> bool:
    if not isinstance(data_type, T.ArrayType) or not isinstance(
        data_type.elementType, T.StructType
    ):
        return False
    fields = {f.name: f.dataType for f in data_type.elementType}
    return (
        fields.keys() == {"key", "value"}
        and isinstance(fields["key"], T.StringType)
        and isinstance(fields["value"], T.BinaryType)
    )


def check_columns(schema: T.StructType, default_topic: str | None, *, source: bool = True) -> None:
    """Refuse a schema that can't be written directly or, with ``source=False``, at all."""
    for name in written(schema) if source else payload(schema):
        if schema.names.count(name) > 1:
            raise UnsupportedPipelineError(f"there is more than one `{name}` column")
    types = {field.name: field.dataType for field in schema}
    _check_value(types)
    if source and (fault := source_fault(schema)) is not None:
        raise UnsupportedPipelineError(fault)
    _check_others(types, default_topic)
    check_target(schema)


def check_target(schema: T.StructType) -> None:
    """Refuse the source's own ``topic`` column, which `with_own_topic_marked` has marked."""
    if "topic" in schema.names and schema["topic"].metadata == SOURCES_OWN:
        raise UnsupportedPipelineError(
            "the `topic` column is the source's own. It would be each row's target, instead of the "
            "sink's topic=, so rows would go back to where they came from. Select the columns to "
            "write, as in select('source', 'key', 'value'), or remove the other columns with "
            "drop('topic', 'partition', 'timestamp'). If rows are meant for topics "
            "of the same names in another cluster, say so: "
            "F.col('topic').cast('string').alias('topic')"
        )


def _check_value(types: Mapping[str, T.DataType]) -> None:
    if "value" not in types:
        raise UnsupportedPipelineError(
            f"there is no `value` column to write; the columns are {', '.join(types) or 'none'}"
        )
    check_not_void(types, "value", "binary")
    if not isinstance(types["value"], _BYTES):
        raise UnsupportedPipelineError(
            f"`value` is {types['value'].simpleString()}, not binary or string; encode it, for "
            "example with to_json or to_avro"
        )


def check_not_void(types: Mapping[str, T.DataType], name: str, wanted: str) -> None:
    if isinstance(types.get(name), T.NullType):
        raise UnsupportedPipelineError(
            f"`{name}` is void, a null without a type: give it a type, "
            f"F.lit(None).cast({wanted!r}).alias({name!r})"
        )


def _check_others(types: Mapping[str, T.DataType], default_topic: str | None) -> None:
    if default_topic is None and "topic" not in types:
        raise UnsupportedPipelineError(
            "there is no target topic: give the sink a topic= or the rows a `topic` column"
        )
    for name, (allowed, words) in _OPTIONAL.items():
        check_not_void(types, name, words.partition(" ")[0])
        if name in types and not isinstance(types[name], allowed):
            raise UnsupportedPipelineError(f"`{name}` is {types[name].simpleString()}, not {words}")
    check_not_void(types, "headers", _HEADERS)
    if "headers" in types and not header_type_fits(types["headers"]):
        raise UnsupportedPipelineError(
            f"`headers` is {types['headers'].simpleString()}, not {_HEADERS}"
        )


def source_fault(schema: T.StructType) -> str | None:
    """Return what is wrong with the ``source`` column, or None if nothing is."""
    if SOURCE not in schema.names:
        return (
            "there is no `source` column, which holds each row's source offset: read with "
            f"sink.read and keep the column in every select; {_ONLY_STAGED}"
        )
    data_type = schema[SOURCE].dataType
    fields = data_type.fields if isinstance(data_type, T.StructType) else []
    place = [f for f in fields if f.name not in LETTER_FIELDS]
    if sorted(f.name for f in place) != sorted(PLACE) or not all(
        isinstance(f.dataType, PLACE[f.name]) for f in place
    ):
        return (
            f"`source` is {data_type.simpleString()}, not the struct<topic:string,partition:int,"
            f"offset:bigint> of sink.read; keep that column as it is; {_ONLY_STAGED}"
        )
    return None


def written(schema: T.StructType) -> list[str]:
    return [name for name in schema.names if name in WRITTEN]


def payload(schema: T.StructType) -> list[str]:
    return [name for name in schema.names if name in _PAYLOAD]
