"""Finds schema changes that would make Avro read a value as a different value."""

from collections.abc import Mapping
from typing import Any, Final

from spark_eos.errors import SchemaError
from spark_eos.schemas.avro_kinds import resolved

# Types that can be recognized from their values.
_UNNAMED: Final = {
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string", "array", "map"),
}
_NUMBERS: Final = ("int", "long", "float", "double")
# The types that each type can be promoted to, according to Avro's schema resolution.
_PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def exact_first(members: list[Any]) -> list[Any]:
    """Return a reader's union, ordered so that a number is read as its own type if possible."""
    # fastavro uses the first member that a value can be read as.
    own = [member for member in members if _kind(member) in _NUMBERS]
    numbers = iter(sorted(own, key=lambda member: _NUMBERS.index(_kind(member))))
    return [next(numbers) if _kind(member) in _NUMBERS else member for member in members]


def check_changes(
    writer: Any, reader: Any, written: Mapping[str, Any], named: Mapping[str, Any]
) -> set[tuple[str, str]]:
    """Return the names of the writer's and the reader's records that correspond.

    Raise SchemaError if a logical type has changed, or a value's union member is ambiguous.
    """
    # Schema resolution ignores logical types, so milliseconds would be read as microseconds. A
    # record, enum or fixed value doesn't show which member of a new union it belongs to.
    changes = _Changes(written, named)
    changes.check("the value", writer, reader)
    return changes.compared


class _Changes:
    """Compares the corresponding types of a writer's and a reader's schema."""

    def __init__(self, written: Mapping[str, Any], named: Mapping[str, Any]) -> None:
        self._written = written
        self._named = named
        # Pairs of records that have been compared. Records may contain themselves.
        self.compared: set[tuple[str, str]] = set()

    def check(self, where: str, writer: Any, reader: Any) -> None:
        """Compare two types, including their fields, items and so on."""
        possible = [resolved(member, self._named) for member in exact_first(_members(reader))]
        for branch in _members(writer):
            member = resolved(branch, self._written)
            if len(possible) > 1 and _is_named(member) and not isinstance(writer, list):
                raise SchemaError(f"{where} is a union, but the writer's schema has none there")
            fitting = [other for other in possible if fits(member, other)]
            if fitting and _is_named(member) and _kind(fitting[0]) != _kind(member):
                raise SchemaError(
                    f"{where} is the {_kind(fitting[0])} {_said(fitting[0])}, but was the "
                    f"{_kind(member)} {_said(member)}"
                )
            if any(_same(member, other) for other in fitting) and not _same(member, fitting[0]):
                raise SchemaError(
                    f"{where} is a union, in which {_said(member)} would be read as "
                    f"{_said(fitting[0])}, although the union has {_said(member)} too"
                )
            for other in fitting[:1]:
                self._check_one(where, member, other)

    def _check_one(self, where: str, writer: Any, reader: Any) -> None:
        before, after = _logical(writer), _logical(reader)
        if before and after and before != after:
            raise SchemaError(f"{where} has the logical type {after}, but was {before}")
        kind = _kind(reader)
        if kind == "record":
            self._check_fields(writer, reader)
        elif kind in {"array", "map"}:
            part = "items" if kind == "array" else "values"
            self.check(where, writer[part], reader[part])

    def _check_fields(self, writer: Mapping[str, Any], reader: Mapping[str, Any]) -> None:
        pair = writer["name"], reader["name"]
        if pair in self.compared:
            return
        self.compared.add(pair)
        types = {field["name"]: field["type"] for field in writer["fields"]}
        for field in reader["fields"]:
            names = [field["name"], *field.get("aliases", ())]
            was = next((name for name in names if name in types), None)
            if was is not None:
                where = f"field {field['name']!r} of {reader['name']}"
                self.check(where, types[was], field["type"])


def _kind(schema: Any) -> str:
    kind: Any = schema["type"] if isinstance(schema, dict) else schema
    return str(kind)


def _is_named(schema: Any) -> bool:
    """Return True for a record, enum or fixed, which can't be recognized from its values."""
    return _kind(schema) not in _UNNAMED


def _members(schema: Any) -> list[Any]:
    """Return the members of a union except null; for other types, the type itself."""
    return (
        [member for member in schema if member != "null"] if isinstance(schema, list) else [schema]
    )


def fits(writer: Any, reader: Any) -> bool:
    """Return True if fastavro reads values of the writer's type as the reader's type."""
    before, after = _kind(writer), _kind(reader)
    if _is_named(writer) and _is_named(reader):
        if before == after == "fixed" and writer["size"] != reader["size"]:
            return False
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
    """Return the logical type of a type; "" if it has none."""
    name: str = schema.get("logicalType", "") if isinstance(schema, dict) else ""
    return f"{name} of scale {schema.get('scale', 0)}" if name == "decimal" else name
