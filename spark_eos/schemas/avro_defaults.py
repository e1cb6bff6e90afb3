"""Prepares Avro schemas for fastavro: removes logical types and completes defaults."""

from collections.abc import Mapping
from typing import Any, Final

from spark_eos.errors import SchemaError
from spark_eos.schemas.avro_kinds import resolved, tag_of

# The Python types of defaults in a schema's JSON.
_JSON: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    **dict.fromkeys(("int", "long"), (int,)),
    **dict.fromkeys(("float", "double"), (int, float)),
    # Completed defaults are bytes already.
    **dict.fromkeys(("bytes", "string", "fixed", "enum"), (str, bytes)),
    "array": (list,),
    **dict.fromkeys(("map", "record"), (dict,)),
}
# Maximum number of values in a schema's defaults. Types that refer to each other multiply them.
_MOST: Final = 100_000


def make_plain(schema: Any, named: dict[str, Any], *, complete_defaults: bool) -> None:
    """Remove logical types from a parsed record and its named types, and complete defaults."""
    defaults = Defaults(named) if complete_defaults else None
    for named_type in (schema, *named.values(), *schema["__named_schemas"].values()):
        _make_plain(named_type, defaults)


def _make_plain(schema: Any, defaults: "Defaults | None") -> None:
    if isinstance(schema, list):
        for part in schema:
            _make_plain(part, defaults)
    elif isinstance(schema, dict):
        # fastavro makes a Python object for each value of a logical type, which halves its speed.
        schema.pop("logicalType", None)
        for name in ("type", "items", "values"):
            _make_plain(schema.get(name), defaults)
        for field in schema.get("fields", ()):
            _make_plain(field["type"], defaults)
            # fastavro reads bytes in defaults as text, and doesn't fill in defaults within
            # defaults.
            if defaults is not None and "default" in field:
                field["default"] = defaults.of(field)


class Defaults:
    """Completes the defaults of fields, so that they equal values read by fastavro."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._made = 0

    def of(self, field: Mapping[str, Any]) -> Any:
        """Return the complete default of a field."""
        try:
            return self.whole(field["default"], field["type"])
        except SchemaError as error:
            raise SchemaError(f"field {field['name']!r}: {error.text}") from None

    def whole(self, value: Any, schema: Any) -> Any:
        """Return the complete default of a type, with the defaults of the fields within it."""
        self._made += 1
        if self._made > _MOST:
            raise SchemaError(f"the schema's defaults up to here hold more than {_MOST:,} values")
        schema = resolved(schema, self._named)
        if isinstance(schema, list):
            return self._member(value, schema)
        kind = schema["type"]
        if value is None and kind != "null":
            raise SchemaError(f"its default lacks a value of type {kind}")
        if kind in {"bytes", "fixed"} and isinstance(value, str):
            content = value.encode("iso-8859-1")
            # Like Avro for Java, cut or pad a fixed's default to the fixed's size.
            size = len(content) if kind == "bytes" else schema["size"]
            return content[:size].ljust(size, b"\0")
        if kind == "array":
            return [self.whole(item, schema["items"]) for item in value]
        if kind == "map":
            return {key: self.whole(item, schema["values"]) for key, item in value.items()}
        if kind == "record":
            own = ((field["name"], field) for field in schema["fields"])
            return {
                name: self.whole(value.get(name, field.get("default")), field["type"])
                for name, field in own
            }
        return value

    def _member(self, value: Any, union: list[Any]) -> Any:
        """Return a union's default as a value of the first member that fits it."""
        if isinstance(value, tuple):
            # Already tagged: a type that is used in several places is visited several times.
            return value
        member = next((branch for branch in union if self._may_be(value, branch)), union[0])
        made = self.whole(value, member)
        several = len([branch for branch in union if branch != "null"]) > 1
        # Tag the default like any other value. Without a tag, fastavro would guess its member.
        tagged = made is not None and (several or _holds_tags(made))
        return (tag_of(member, self._named), made) if tagged else made

    def _may_be(self, value: Any, schema: Any) -> bool:
        """Return True if a default's JSON type fits a member of a union, as in Avro for Java."""
        return type(value) in _JSON[resolved(schema, self._named)["type"]]


def _holds_tags(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, tuple) or any(map(_holds_tags, inner))
