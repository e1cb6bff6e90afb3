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
    """A reader's union, ordered so that a number is read as its own type, where there is one."""
    # fastavro takes the first member that a value may be read as.
    own = [member for member in members if _kind(member) in _NUMBERS]
    numbers = iter(sorted(own, key=lambda member: _NUMBERS.index(_kind(member))))
    return [next(numbers) if _kind(member) in _NUMBERS else member for member in members]


def check_changes(
    writer: Any, reader: Any, written: Mapping[str, Any], named: Mapping[str, Any]
) -> None:
    """Refuses a changed logical type, and a union whose member nothing tells."""
    # Avro resolves what is below the logical types, so that milliseconds would be read as
    # microseconds; and a record, enum or fixed does not tell which member of a new union it is.
    _Changes(written, named).check("the value", writer, reader)


class _Changes:
    """Compares types of a writer and a reader where they meet, each with its named types."""

    def __init__(self, written: Mapping[str, Any], named: Mapping[str, Any]) -> None:
        self._written = written
        self._named = named
        # Records may contain themselves.
        self._compared: set[tuple[str, str]] = set()

    def check(self, where: str, writer: Any, reader: Any) -> None:
        """Compares two types, with their fields, items and so on."""
        possible = [_resolved(member, self._named) for member in exact_first(_members(reader))]
        for one in _members(writer):
            member = _resolved(one, self._written)
            if len(possible) > 1 and _is_named(member) and not isinstance(writer, list):
                raise SchemaError(f"{where} is a union, and what has written it has none there")
            fitting = [other for other in possible if _fits(member, other)]
            if fitting and _is_named(member) and _kind(fitting[0]) != _kind(member):
                raise SchemaError(
                    f"{where} is the {_kind(fitting[0])} {_said(fitting[0])}, and was the "
                    f"{_kind(member)} {_said(member)}"
                )
            if any(_same(member, other) for other in fitting) and not _same(member, fitting[0]):
                raise SchemaError(
                    f"{where} is a union, of which {_said(member)} would be read as "
                    f"{_said(fitting[0])}"
                )
            for other in fitting[:1]:
                self._check_one(where, member, other)

    def _check_one(self, where: str, writer: Any, reader: Any) -> None:
        before, after = _logical(writer), _logical(reader)
        if before and after and before != after:
            raise SchemaError(f"{where} is of the logical type {after}, and was {before}")
        kind = _kind(reader)
        if kind == "record":
            self._check_fields(writer, reader)
        elif kind in {"array", "map"}:
            part = "items" if kind == "array" else "values"
            self.check(where, writer[part], reader[part])

    def _check_fields(self, writer: Mapping[str, Any], reader: Mapping[str, Any]) -> None:
        pair = writer["name"], reader["name"]
        if pair in self._compared:
            return
        self._compared.add(pair)
        types = {field["name"]: field["type"] for field in writer["fields"]}
        for field in reader["fields"]:
            names = [field["name"], *field.get("aliases", ())]
            was = next((name for name in names if name in types), None)
            if was is not None:
                where = f"field {field['name']!r} of {reader['name']}"
                self.check(where, types[was], field["type"])


def _resolved(schema: Any, named: Mapping[str, Any]) -> Any:
    """A type by its definition, not by its name."""
    return named.get(schema, schema) if isinstance(schema, str) else schema


def _kind(schema: Any) -> str:
    kind: Any = schema["type"] if isinstance(schema, dict) else schema
    return str(kind)


def _is_named(schema: Any) -> bool:
    """Whether it is a record, an enum or a fixed: a value does not tell that it is of one."""
    return _kind(schema) not in _UNNAMED


def _members(schema: Any) -> list[Any]:
    """The members of a union beside null; else the type itself."""
    return (
        [member for member in schema if member != "null"] if isinstance(schema, list) else [schema]
    )


def _fits(writer: Any, reader: Any) -> bool:
    """Whether fastavro reads a value of one type as one of the other."""
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
    """The logical type of a type; "" if there is none."""
    name: str = schema.get("logicalType", "") if isinstance(schema, dict) else ""
    return f"{name} of scale {schema.get('scale', 0)}" if name == "decimal" else name
