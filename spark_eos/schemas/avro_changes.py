"""Changes between a writer's and a reader's Avro schema that would be read as another value."""

from collections.abc import Mapping
from typing import Any, Final

from spark_eos.errors import SchemaError

# Whose values tell what they are.
_UNNAMED: Final = {
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string", "array", "map"),
}
_NUMBERS: Final = ("int", "long", "float", "double")
# What a value of a type may be read as, beside the type itself (Avro's schema resolution).
_PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def exact_first(members: list[Any]) -> list[Any]:
    """A reader's union in an order in which a number is read as its own type, where there is one.

    fastavro takes the first member that a value may be read as.

    Example:
        >>> exact_first(["null", "double", "long"])
        ['null', 'long', 'double']
    """
    numbers = iter(sorted(filter(_is_number, members), key=lambda one: _NUMBERS.index(_kind(one))))
    return [next(numbers) if _is_number(one) else one for one in members]


def check_changes(
    writer: Any, reader: Any, written: Mapping[str, Any], named: Mapping[str, Any]
) -> None:
    """Refuses a changed logical type, and a union whose member nothing tells.

    Avro resolves what is below the logical types, so that milliseconds would be read as
    microseconds; and a record, enum or fixed does not tell which member of a new union it is.

    ``written`` and ``named``: the writer's and the reader's named types.

    Raises:
        SchemaError: so it is; with the field.
    """
    changes = _Changes(written, named)
    changes.check("the value", writer, reader)
    for name, own in named.items():
        for found in changes.written_as(name, own):
            changes.check_fields(name, own, found)


class _Changes:
    """Compares types of a writer and a reader, each with its named types."""

    def __init__(self, written: Mapping[str, Any], named: Mapping[str, Any]) -> None:
        self._written = written
        self._named = named

    def written_as(self, name: str, own: Mapping[str, Any]) -> list[Any]:
        """The writer's types that a reader's may be: that of its name, or all of its short name."""
        if name in self._written:
            return [self._written[name]]
        short = [one.rpartition(".")[2] for one in _names(own, name)]
        return [one for full, one in self._written.items() if full.rpartition(".")[2] in short]

    def check_fields(self, name: str, own: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Compares the fields of a record."""
        if "fields" not in own or "fields" not in found:
            return
        fields = {field["name"]: field["type"] for field in found["fields"]}
        for field in own["fields"]:
            was = next((one for one in _names(field, field["name"]) if one in fields), None)
            where = f"field {field['name']!r} of {name}"
            if was is not None:
                self.check(where, fields[was], field["type"])
            elif field.get("default") is not None and _begins_with_a_named_type(field["type"]):
                raise SchemaError(f"{where}: the writer lacks it, and its default is of a union")

    def check(self, where: str, writer: Any, reader: Any) -> None:
        """Compares two types, with their items and so on."""
        writer, reader = _resolved(writer, self._written), _resolved(reader, self._named)
        if isinstance(writer, list) or isinstance(reader, list):
            if len(_members(reader)) > 1 and _is_named(writer):
                raise SchemaError(f"{where} is a union, and what has written it has none there")
            for member in _members(writer):
                self._check_member(where, member, _members(reader))
            return
        before, after = _logical(writer), _logical(reader)
        if before and after and before != after:
            raise SchemaError(f"{where} is of the logical type {after}, and was {before}")
        for part in ("items", "values"):
            if _kind(writer) == _kind(reader) and part in writer:
                self.check(where, writer[part], reader[part])

    def _check_member(self, where: str, member: Any, members: list[Any]) -> None:
        """Compares a writer's type with the reader's that fastavro takes: the first that fits."""
        own = _resolved(member, self._written)
        possible = [_resolved(one, self._named) for one in exact_first(members)]
        possible = [one for one in possible if _fits(own, one)]
        if not possible:
            return
        if any(_same(own, one) for one in possible) and not _same(own, possible[0]):
            raise SchemaError(
                f"{where} is a union, of which {_said(own)} would be read as {_said(possible[0])}"
            )
        self.check(where, own, possible[0])


def _names(own: Mapping[str, Any], name: str) -> list[str]:
    """The names by which a type, or a field, is found at the writer."""
    return [name, *own.get("aliases", ())]


def _resolved(schema: Any, named: Mapping[str, Any]) -> Any:
    """A type by its definition: not by its name, nor within another one."""
    if isinstance(schema, str):
        return named.get(schema, schema)
    if isinstance(schema, dict) and not isinstance(schema["type"], str):
        return _resolved(schema["type"], named)
    return schema


def _kind(schema: Any) -> str:
    found: Any = schema["type"] if isinstance(schema, dict) else schema
    return str(found)


def _is_number(schema: Any) -> bool:
    return _kind(schema) in _NUMBERS


def _is_named(schema: Any) -> bool:
    """Whether it is a record, an enum or a fixed: a value does not tell that it is of one."""
    return not isinstance(schema, list) and _kind(schema) not in _UNNAMED


def _begins_with_a_named_type(schema: Any) -> bool:
    members = _members(schema)
    return len(members) > 1 and _is_named(members[0])


def _members(schema: Any) -> list[Any]:
    """The members of a union beside null; else the type itself."""
    return [one for one in schema if one != "null"] if isinstance(schema, list) else [schema]


def _fits(writer: Any, reader: Any) -> bool:
    """Whether fastavro reads a value of one type as one of the other."""
    before, after = _kind(writer), _kind(reader)
    if _is_named(writer) and _is_named(reader):
        name = writer["name"]
        short = {name, name.rpartition(".")[2]}
        return reader["name"].rpartition(".")[2] in short or not short.isdisjoint(
            reader.get("aliases", ())
        )
    return before == after or after in _PROMOTED.get(before, ())


def _same(writer: Any, reader: Any) -> bool:
    return _kind(writer) == _kind(reader) and _said(writer) == _said(reader)


def _said(schema: Any) -> str:
    return str(schema["name"]) if _is_named(schema) else _kind(schema)


def _logical(schema: Any) -> str:
    """The logical type of a type; "" if there is none."""
    name: str = schema.get("logicalType", "") if isinstance(schema, dict) else ""
    return f"{name} of scale {schema.get('scale', 0)}" if name == "decimal" else name
