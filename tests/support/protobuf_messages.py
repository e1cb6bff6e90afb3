"""Confluent's Protobuf serializers, with the interface of other formats' serializers."""

from base64 import b64decode, b64encode
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import SerializationContext
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_tools import protoc


def compiled(text: str) -> str:
    """A schema as registered by Confluent's serializer: the compiled file in Base64."""
    with TemporaryDirectory() as directory:
        made = Path(directory, "made")
        Path(directory, "test.proto").write_text(text)
        arguments = [
            "protoc",
            f"-I{directory}",
            "--include_imports",
            f"--descriptor_set_out={made}",
        ]
        include = str(Path(protoc.__file__).parent / "_proto")
        assert protoc.main([*arguments, f"-I{include}", "test.proto"]) == 0
        files = FileDescriptorSet.FromString(made.read_bytes())
    return b64encode(files.file[-1].SerializeToString()).decode()


def _class_of(schema: str) -> Any:
    pool = DescriptorPool()
    file = pool.AddSerializedFile(b64decode(schema))
    *_, last = file.message_types_by_name.values()
    return message_factory.GetMessageClass(last)


class MessageSerializer:
    """Encodes a dictionary as the last message of a compiled schema."""

    def __init__(self, client: SchemaRegistryClient, schema: str) -> None:
        self._make = _class_of(schema)
        self._write = ProtobufSerializer(self._make, client)

    def __call__(self, value: dict[str, Any], context: SerializationContext) -> bytes | None:
        names = self._make.DESCRIPTOR.fields_by_name
        own = {name: one for name, one in value.items() if name in names}
        written: bytes | None = self._write(self._make(**own), context)
        return written


class MessageDeserializer:
    def __init__(self, client: SchemaRegistryClient, schema: str) -> None:
        self._read = ProtobufDeserializer(_class_of(schema), None, client)

    def __call__(self, record: bytes, context: SerializationContext) -> dict[str, Any]:
        message: Any = self._read(record, context)
        return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
