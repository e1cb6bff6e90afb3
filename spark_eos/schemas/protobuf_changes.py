"""Finds schema changes that would make Protobuf lose a value or read it as a different value."""

from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor as F

from spark_eos.errors import SchemaError
from spark_eos.schemas.protobuf_kinds import MESSAGES, is_map

# The types that each type can be read as, because equal values have equal bytes.
_WIDER: Final[dict[int, set[int]]] = {
    F.TYPE_INT32: {F.TYPE_INT64, F.TYPE_ENUM},
    F.TYPE_UINT32: {F.TYPE_INT64, F.TYPE_UINT64},
    F.TYPE_SINT32: {F.TYPE_SINT64},
    F.TYPE_BOOL: {F.TYPE_INT32, F.TYPE_INT64, F.TYPE_UINT32, F.TYPE_UINT64},
    F.TYPE_ENUM: {F.TYPE_INT32, F.TYPE_INT64},
    F.TYPE_STRING: {F.TYPE_BYTES},
    F.TYPE_BYTES: {F.TYPE_STRING},
}
_NAMES: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(F).items()
    if name.startswith("TYPE_")
}


def check_readable(
    writer: Any, reader: Any, path: str = "", seen: set[tuple[str, str]] | None = None
) -> None:
    """Raise SchemaError if the reader's message would lose fields or read wrong values."""
    pair, seen = (writer.full_name, reader.full_name), set() if seen is None else seen
    if pair in seen:
        return
    seen.add(pair)
    for oneof in reader.oneofs:
        _check_oneof(writer, oneof, path)
    for number, own in reader.fields_by_number.items():
        field = writer.fields_by_number.get(number)
        if field is None:
            continue
        where = f"{path}{own.name} (field {number})"
        # Protobuf itself drops values with another wire type, and truncates values that are too
        # long.
        same = field.type == own.type or own.type in _WIDER.get(field.type, ())
        fewer = field.is_repeated and not own.is_repeated
        # A map keeps only the last of several messages with the same key.
        merged = field.is_repeated and is_map(own) and not is_map(field)
        if not same or fewer or merged:
            raise SchemaError(f"{where}: {_told(field)} can't be read as {_told(own)}")
        if own.has_default_value and own.default_value and not field.has_presence:
            raise SchemaError(
                f"{where}: the writer leaves out zeros and empty values, which would be read as "
                "the reader's default"
            )
        if own.type == F.TYPE_ENUM and own.enum_type.is_closed:
            _check_closed(field, own, where)
        if own.type in MESSAGES:
            _check_well_known(field.message_type.full_name, own.message_type.full_name, where)
            check_readable(field.message_type, own.message_type, f"{path}{own.name}.", seen)


def _check_oneof(writer: Any, oneof: Any, path: str) -> None:
    """Refuse fields that can all have values if the reader's oneof would keep only the last."""
    numbers = [member.number for member in oneof.fields if member.number in writer.fields_by_number]
    fields = [writer.fields_by_number[number] for number in numbers]
    homes = {member.containing_oneof and member.containing_oneof.name for member in fields}
    if len(fields) > 1 and (len(homes) > 1 or None in homes):
        names = " and ".join(member.name for member in fields)
        raise SchemaError(
            f"{path}{oneof.name}: a message may have both {names}, but the reader's oneof keeps one"
        )


def _check_well_known(writer: str, reader: str, where: str) -> None:
    """Refuse to read one of Protobuf's own types as another, such as a duration as a timestamp."""
    if writer != reader and any(name.startswith("google.protobuf.") for name in (writer, reader)):
        raise SchemaError(f"{where}: {writer} can't be read as {reader}")


def _check_closed(writer: Any, reader: Any, where: str) -> None:
    """Raise SchemaError if the reader's closed enum (proto2) would drop the writer's values."""
    known = {value.number for value in reader.enum_type.values}
    given = () if writer.enum_type is None else writer.enum_type.values
    lost = [value.name for value in given if value.number not in known]
    if writer.enum_type is None or not writer.enum_type.is_closed or lost:
        what = ", ".join(lost) or f"each value of {_told(writer)}"
        raise SchemaError(f"{where}: {what} is not in the reader's {reader.enum_type.full_name}")


def _told(field: Any) -> str:
    if is_map(field):
        return "map"
    return f"repeated {_NAMES[field.type]}" if field.is_repeated else str(_NAMES[field.type])
