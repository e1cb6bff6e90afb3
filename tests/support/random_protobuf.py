"""Random Protobuf schemas, messages of these schemas, and damaged messages."""

import base64
import random
from typing import Any

from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor import FieldDescriptor as F

from spark_eos.schemas.formats import Schema
from support.schema_codecs import damages

SCALARS = [kind for kind in range(1, 19) if kind not in {F.TYPE_GROUP, F.TYPE_MESSAGE, F.TYPE_ENUM}]
PACKABLE = {*SCALARS, F.TYPE_ENUM} - {F.TYPE_STRING, F.TYPE_BYTES}
KEYS = sorted({*SCALARS} - {F.TYPE_DOUBLE, F.TYPE_FLOAT, F.TYPE_BYTES})
NUMBERS = [*range(1, 17), 100, 2047, 2048, 18_999, 20_000, 2**29 - 1]
WELL_KNOWN = ["Timestamp", "Duration", "StringValue", "Int32Value", "UInt64Value", "BoolValue"]
WELL_KNOWN += ["DoubleValue", "BytesValue"]
_FILES = {"timestamp": timestamp_pb2, "duration": duration_pb2, "wrappers": wrappers_pb2}
_SIGNED_32 = [0, 0, 1, -1, 127, 128, 2**31 - 1, -(2**31)]
_SIGNED_64 = [*_SIGNED_32, 2**40, 2**55, 2**56, -(2**62), 2**63 - 1, -(2**63)]
_UNSIGNED_32 = [0, 0, 1, 127, 128, 16_384, 2**31, 2**32 - 1]
_UNSIGNED_64 = [*_UNSIGNED_32, 2**56, 2**63, 2**64 - 1]
_FLOATS = [0.0, -0.0, 1.5, float("inf"), float("nan")]
VALUES: dict[int, list[Any]] = {
    **dict.fromkeys((F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32), _SIGNED_32),
    **dict.fromkeys((F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64), _SIGNED_64),
    **dict.fromkeys((F.TYPE_UINT32, F.TYPE_FIXED32), _UNSIGNED_32),
    **dict.fromkeys((F.TYPE_UINT64, F.TYPE_FIXED64), _UNSIGNED_64),
    F.TYPE_BOOL: [False, True],
    F.TYPE_FLOAT: _FLOATS,
    F.TYPE_DOUBLE: [*_FLOATS, 0.1],
    F.TYPE_STRING: ["", "a", "b", "\u00e9", "x" * 130, "\0"],
    F.TYPE_BYTES: [b"", b"a", b"\xff\0", b"x" * 300],
}


class RandomProtobuf:
    """Makes schemas as compiled files, since protoc takes a large part of a second for each."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._count = 0

    def file(self) -> Any:
        syntax = self.random.choice(["proto2", "proto3", "proto3"])
        file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="shop", syntax=syntax)
        file.dependency.extend(f"google/protobuf/{name}.proto" for name in _FILES)
        self._proto2 = syntax == "proto2"
        values = {"A": 0, "B": 1, "C": 150, "D": -1, "E": 1}
        enum = file.enum_type.add(name="Enum")
        enum.options.allow_alias = True
        for name, number in values.items():
            enum.value.add(name=name, number=number)
        self._message(file.message_type.add(name="Top"), ".shop.Top", 2)
        return file

    def _message(self, message: Any, full: str, depth: int) -> None:
        chance = self.random
        numbers = chance.sample(NUMBERS, chance.randint(1, 6) if depth else chance.randint(0, 3))
        if chance.random() < 0.5:
            numbers.sort()
        grouped = chance.random() < 0.3
        if grouped:
            message.oneof_decl.add(name="one")
        for place, number in enumerate(numbers):
            self._field(message, full, depth, (place, number), grouped=grouped)
        if grouped and not any(field.HasField("oneof_index") for field in message.field):
            del message.oneof_decl[:]
        for field in message.field:
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")

    def _field(
        self, message: Any, full: str, depth: int, place: tuple[int, int], *, grouped: bool
    ) -> None:
        chance = self.random
        field = message.field.add(name=f"f{place[0]}", number=place[1], label=F.LABEL_OPTIONAL)
        if grouped and chance.random() < 0.5:
            field.oneof_index = 0
            self._type(message, field, full, depth)
        elif chance.random() < 0.15:
            self._map(message, field, full, depth)
        elif chance.random() < 0.3:
            self._type(message, field, full, depth)
            field.label = F.LABEL_REPEATED
            if field.type in PACKABLE and chance.random() < 0.5:
                field.options.packed = chance.random() < 0.5
        else:
            self._type(message, field, full, depth)
            if self._proto2:
                self._proto2_rule(field, is_top=depth == 2)
            elif chance.random() < 0.3:
                field.proto3_optional = True

    def _proto2_rule(self, field: Any, *, is_top: bool) -> None:
        if self.random.random() < 0.2 and is_top:
            field.label = F.LABEL_REQUIRED
        elif self.random.random() < 0.3 and field.type in {F.TYPE_INT32, F.TYPE_STRING}:
            field.default_value = "7"
        elif self.random.random() < 0.3 and field.type == F.TYPE_ENUM:
            field.default_value = "B"

    def _type(self, message: Any, field: Any, full: str, depth: int) -> None:
        chance = self.random.random()
        if chance < 0.1:
            field.type, field.type_name = F.TYPE_ENUM, ".shop.Enum"
        elif chance < 0.25:
            field.type = F.TYPE_MESSAGE
            field.type_name = f".google.protobuf.{self.random.choice(WELL_KNOWN)}"
        elif chance < 0.45 and depth:
            self._count += 1
            inner = message.nested_type.add(name=f"M{self._count}")
            field.type, field.type_name = F.TYPE_MESSAGE, f"{full}.{inner.name}"
            self._message(inner, field.type_name, depth - 1)
        else:
            field.type = self.random.choice(SCALARS)

    def _map(self, message: Any, field: Any, full: str, depth: int) -> None:
        name = f"F{field.name[1:]}Entry"
        entry = message.nested_type.add(name=name)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=F.LABEL_OPTIONAL, type=self.random.choice(KEYS))
        value = entry.field.add(name="value", number=2, label=F.LABEL_OPTIONAL)
        self._type(message, value, full, depth)
        field.label, field.type, field.type_name = (
            F.LABEL_REPEATED,
            F.TYPE_MESSAGE,
            f"{full}.{name}",
        )

    def changed(self, file: Any) -> Any:
        """Return a reader's file, in which some fields are missing, new, or of another type."""
        other = descriptor_pb2.FileDescriptorProto.FromString(file.SerializeToString())
        self._change(other.message_type[0])
        return other

    def _change(self, message: Any) -> None:
        chance = self.random
        wider = {F.TYPE_INT32: F.TYPE_INT64, F.TYPE_BOOL: F.TYPE_UINT64}
        wider |= {F.TYPE_STRING: F.TYPE_BYTES, F.TYPE_BYTES: F.TYPE_STRING}
        kept = []
        for field in message.field:
            if chance.random() < 0.2 and not field.HasField("oneof_index"):
                continue
            plain = not (field.HasField("oneof_index") or field.default_value)
            if chance.random() < 0.3 and plain:
                field.type = wider.get(field.type, field.type)
            if chance.random() < 0.2 and plain:
                field.label = F.LABEL_REPEATED
            kept.append(field)
        used = {field.number for field in message.field}
        del message.field[:]
        message.field.extend(kept)
        if chance.random() < 0.3:
            number = chance.choice([number for number in NUMBERS if number not in used])
            kind = chance.choice(SCALARS)
            message.field.add(name="new", number=number, label=F.LABEL_OPTIONAL, type=kind)
        for inner in message.nested_type:
            if not inner.options.map_entry:
                self._change(inner)

    def fill(self, message: Any) -> Any:
        """Give some fields values, and most required fields."""
        for field in message.DESCRIPTOR.fields:
            if self.random.random() < (0.02 if field.is_required else 0.35):
                continue
            if field.message_type and field.message_type.GetOptions().map_entry:
                self._fill_map(message, field)
            elif field.is_repeated:
                for _ in range(self.random.choice([0, 1, 2, 3, 20])):
                    if field.type == F.TYPE_MESSAGE:
                        self.fill(getattr(message, field.name).add())
                    else:
                        getattr(message, field.name).append(self.value(field))
            elif field.type == F.TYPE_MESSAGE:
                getattr(message, field.name).SetInParent()
                self.fill(getattr(message, field.name))
            else:
                setattr(message, field.name, self.value(field))
        return message

    def _fill_map(self, message: Any, field: Any) -> None:
        own = getattr(message, field.name)
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        for _ in range(self.random.choice([0, 1, 2, 5])):
            if value.type == F.TYPE_MESSAGE:
                self.fill(own[self.value(key)])
            else:
                own[self.value(key)] = self.value(value)

    def value(self, field: Any) -> Any:
        if field.type == F.TYPE_ENUM:
            more = [] if field.enum_type.is_closed else [77]
            return self.random.choice([0, 1, 150, -1, *more])
        if field.containing_type.full_name.startswith("google.protobuf.") and field.name == "nanos":
            return self.random.choice(
                [0, 1, 999_999_999, 1_500, *([-1] * (self.random.random() < 0.1))]
            )
        if field.name == "seconds" and self.random.random() < 0.95:
            return self.random.choice([0, 1, -1, 1_700_000_000, -62_135_596_799])
        return self.random.choice(VALUES[field.type])

    def damaged(self, message: Any) -> bytes:
        """Return a message truncated, extended, with changed bits or bytes, or in another order."""
        chance = self.random
        content: bytes = message.SerializePartialToString(deterministic=True)
        parts = self._in_parts(message)
        unknown = chance.choice([b"\xf8\x01\x01", b"\xfa\x01\x01x", b"\xf3\x01\xf4\x01"])
        some = damages(content, chance, bytes([0x80, 0xFF, 0, 1, 2, 3, 8, 10]))
        return chance.choice([*some, parts, content + parts, content + unknown])

    def _in_parts(self, message: Any) -> bytes:
        """Return each field by itself, in any order."""
        parts = []
        for field, _ in message.ListFields():
            part = type(message)()
            part.CopyFrom(message)
            for other, _ in message.ListFields():
                if other.number != field.number:
                    part.ClearField(other.name)
            parts.append(part.SerializePartialToString(deterministic=True))
        self.random.shuffle(parts)
        return b"".join(parts)


def compiled(file: Any) -> Schema:
    """Return a file's schema as registered by Confluent's serializer for Python."""
    return Schema("PROTOBUF", base64.b64encode(file.SerializeToString()).decode())
