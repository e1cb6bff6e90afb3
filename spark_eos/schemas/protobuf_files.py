"""Makes descriptors of Protobuf schemas from ``.proto`` texts or compiled files in base64."""

import base64
import binascii
import errno
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from spark_eos._python_module import finished
from spark_eos.errors import ConfigurationError, SchemaError
from spark_eos.schemas.formats import Schema

_OWN: Final = "spark_eos_schema.proto"
_IMPORT: Final = re.compile(r"""import\s+(?:public\s+|weak\s+)?["']([^"']+)["']""")
# Files that serializers don't register, since all readers have them.
_COMMON: Final = re.compile(r"(google/(?:protobuf|type)|confluent)/(?:\w+/)*\w+\.proto")
_CONFLUENT: Final = "confluent_kafka.schema_registry."
_PROTOC: Final = "grpc_tools.protoc"
_SECONDS: Final = 60
# Errors for a bad file name, or for a file where another file needs a directory.
_NAMES_CLASH: Final = {errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.EISDIR}

File = Any
"""A FileDescriptorProto."""


def file_of(schema: Schema) -> Any:
    """Return the descriptor of a schema's file, in a pool with all files that it imports."""
    return _file(schema.text, schema.references)


# Cached for all messages of a schema, because protoc takes a good part of a second.
@lru_cache(maxsize=1000)
def _file(text: str, references: tuple[tuple[str, str], ...]) -> Any:
    parts = {name: other for name, other in references if _common(name) is None}
    parts[_OWN] = text
    compiled = {name: _compiled(name, text) for name, text in parts.items()}
    texts = {name: parts[name] for name, file in compiled.items() if file is None}
    files = {name: file for name, file in compiled.items() if file is not None}
    for other in texts.values():
        for name in _IMPORT.findall(other):
            _add_common(name, files)
    for file in [*files.values()]:
        for name in file.dependency:
            _add_common(name, files)
    if texts:
        files |= _by_protoc(texts, files)
    pool = DescriptorPool()
    _add(_OWN, files, pool, {}, "")
    return pool.FindFileByName(_OWN)


def _unusable(error: object) -> SchemaError:
    return SchemaError(f"the Protobuf schema can't be used: {error}")


def _compiled(name: str, text: str) -> File | None:
    """Return a file in base64, as Confluent's Python serializer registers it; None for text."""
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    file.name = name
    return file


def _add_common(name: str, files: dict[str, File]) -> None:
    """Add one of the files that all readers have, and the files that it imports."""
    module = None if name in files else _common(name)
    if module is None:
        return  # If it is missing, protoc reports which file imports it.
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    for other in file.dependency:
        _add_common(other, files)
    files[name] = file


def _common(name: str) -> Any | None:
    """Return the module of a file that all readers have; None for any other file."""
    if not _COMMON.fullmatch(name):
        return None
    package = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    try:
        return importlib.import_module(
            _CONFLUENT + package if name.startswith("confluent") else package
        )
    except ImportError:
        return None


def _add(name: str, files: Mapping[str, File], pool: Any, added: dict[str, bool], by: str) -> None:
    """Add a file to a pool after its imports; ``added`` is False for a file until it is added."""
    if name in added:
        if not added[name]:
            raise _unusable(f"{name} imports itself")
        return
    if name not in files:
        raise _unusable(f"the registry has no reference {name!r}, which {by} imports")
    added[name] = False
    for other in files[name].dependency:
        _add(other, files, pool, added, name)
    pool.Add(files[name])
    added[name] = True


def _by_protoc(texts: Mapping[str, str], compiled: Mapping[str, File]) -> dict[str, File]:
    """Compile files, which may import files that are already compiled."""
    if importlib.util.find_spec("grpc_tools") is None:
        raise ConfigurationError(
            "no module named 'grpc_tools', which compiles Protobuf schemas: install "
            "spark-eos[schemas], on Spark's executors too"
        )
    with tempfile.TemporaryDirectory(prefix="spark-eos-protoc-") as directory:
        # Registries choose the files' names, so keep the files where Python doesn't import from.
        root = Path(directory, "files")
        for name, text in texts.items():
            parts = PurePosixPath(name)
            if parts.is_absolute() or ".." in parts.parts:
                raise _unusable(f"{name!r} can't be the name of a file to import")
            path = root / parts
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                if error.errno in _NAMES_CLASH:
                    raise _unusable(
                        f"{name!r} can't be the name of a file: {error.strerror}"
                    ) from None
                raise
        known, made = Path(directory, "known"), Path(directory, "made")
        every = descriptor_pb2.FileDescriptorSet(file=[*compiled.values()])
        known.write_bytes(every.SerializeToString())
        command = [sys.executable, "-m", _PROTOC, f"-I{root}", "--include_imports"]
        command += [f"--descriptor_set_in={known}"] if compiled else []
        # Let protoc find packages where this process does: Spark has set up its path.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command += [f"--descriptor_set_out={made}", _OWN]
        try:
            done = finished(command, _SECONDS, cwd=directory, env=env)
        except subprocess.TimeoutExpired:
            raise ConfigurationError(f"{_PROTOC} has not ended within {_SECONDS} s") from None
        if done.returncode:
            errors = done.stderr.strip().replace(_OWN, "the schema")[-1000:]
            if done.returncode == 1 and errors and "Traceback" not in errors:
                raise _unusable(errors)
            # protoc was killed or not found, so neither a schema nor a record is to blame.
            raise ConfigurationError(f"{_PROTOC} ended with {done.returncode}: {errors}")
        result = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes())
    return {file.name: file for file in result.file}
