"""Changes between a writer's and a reader's Avro schema that would be read as another value."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from spark_eos.errors import SchemaError

# Whose values tell what they are.
_UNNAMED: Final = {
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string", "array", "map"),
}


def check_changes(
    writer: Any, reader: Any, written: Mapping[str, Any], named: Mapping[str, Any]
) -> None:
    """Refuses a changed logical type, and a union where the writer has none.

    Avro resolves what is below the logical types, so that milliseconds would be read as
    microseconds; and a record, enum or fixed does not tell which member of a new union it is.

    ``written`` and ``named``: the writer's and the reader's named types.

    Raises:
        SchemaError: so it is; with the field.
    """
    _check("the value", writer, reader)
    before = {name.rpartition(".")[2]: one for name, one in written.items()}
    for name, own in named.items():
        names = [one.rpartition(".")[2] for one in _names(own, name)]
        found: Any = next((before[one] for one in names if one in before), {})
        if "fields" not in own or "fields" not in found:
            continue
        fields = {field["name"]: field["type"] for field in found["fields"]}
        for field in own["fields"]:
            was = next((one for one in _names(field, field["name"]) if one in fields), None)
            where = f"field {field['name']!r} of {name}"
            if was is not None:
                _check(where, fields[was], field["type"])
            elif field.get("default") is not None and _begins_with_a_named_type(field["type"]):
                raise SchemaError(f"{where}: the writer lacks it, and its default is of a union")


def _names(own: Mapping[str, Any], name: str) -> list[str]:
    """The names by which a record, or a field, is found at the writer."""
    return [name, *own.get("aliases", ())]


def _check(where: str, writer: Any, reader: Any) -> None:
    if len(_members(reader)) > 1:
        if _is_named(writer):
            raise SchemaError(f"{where} is a union, and what has written it has none there")
        return
    for before, after in zip(_logical(writer), _logical(reader), strict=False):
        if before and after and before != after:
            raise SchemaError(f"{where} is of the logical type {after}, and was {before}")


def _is_named(schema: Any) -> bool:
    """Whether it is a record, an enum or a fixed: a value does not tell that it is of one."""
    kind = schema["type"] if isinstance(schema, dict) else schema
    return isinstance(kind, str) and kind not in _UNNAMED


def _begins_with_a_named_type(schema: Any) -> bool:
    members = _members(schema)
    return len(members) > 1 and _is_named(members[0])


def _members(schema: Any) -> list[Any]:
    """The members of a union beside null."""
    return [one for one in schema if one != "null"] if isinstance(schema, list) else []


def _logical(schema: Any) -> Iterator[str]:
    """The logical types of a type, of its items and so on; empty where there is none."""
    if isinstance(schema, list):
        for one in _members(schema):
            yield from _logical(one)
    elif isinstance(schema, dict):
        name = schema.get("logicalType", "")
        yield f"{name} of scale {schema.get('scale', 0)}" if name == "decimal" else name
        for part in ("items", "values"):
            yield from _logical(schema.get(part))
        if isinstance(schema["type"], dict | list):
            yield from _logical(schema["type"])
    else:
        yield ""
