"""Reads the rows for a comparison from topics and Parquet files."""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
from kafka import TopicPartition
from pyarrow import dataset

from spark_eos._client.locations import for_arrow, without_credentials
from spark_eos.errors import ConfigurationError, VerificationError, escaped
from spark_eos.verify.partitions import OFFSETS, Partitions, Spans, size
from spark_eos.verify.records import Reader

_SHIFT: Final = 40
"""Number of low bits for the row's number in its file; the bits above hold the file's number."""
_ROWS: Final = (1 << _SHIFT) - 1
_AT_ONCE: Final = 4_096
# By default, all row groups of a file are read ahead and kept until the end of the file.
_FORMAT: Final = dataset.ParquetFileFormat(
    default_fragment_scan_options=dataset.ParquetFragmentScanOptions(pre_buffer=False)
)
_VALUE: Final = "value"
_TYPES: Final = {
    *("binary", "large_binary", "binary_view"),
    *("string", "large_string", "string_view"),
    "null",
}


class Row(NamedTuple):
    """A row or record; ``number`` encodes the row's file and place, or the record's position."""

    number: int
    topic: str | None
    key: bytes | None
    value: bytes | None


class TopicRows:
    """The records in spans of partitions; can be read repeatedly. ``total`` counts offsets."""

    has_key = True
    has_topic = False

    def __init__(self, reader: Reader, partitions: Partitions, spans: Spans) -> None:
        self._reader = reader
        self._partitions = partitions
        self._spans = spans
        self.total = size(spans)

    def read(self, advance: Callable[[int], None]) -> Iterator[list[Row]]:
        """Yield all records in batches."""
        return self._read(self._spans, advance)

    def pick(self, numbers: Collection[int]) -> Iterator[Row]:
        """Yield some records; read each partition from the first of these records to the last."""
        wanted = frozenset(numbers)
        spans: dict[TopicPartition, tuple[int, int]] = {}
        for number in sorted(wanted):
            partition, offset = self._partitions.partition(number), number & OFFSETS
            spans[partition] = (spans.get(partition, (offset, 0))[0], offset + 1)
        if spans:
            for batch in self._read(spans, lambda _count: None):
                yield from (row for row in batch if row.number in wanted)

    def name(self, number: int) -> str:
        """Return the row's ``topic:partition:offset``."""
        return str(self._partitions.position(number))

    def _read(self, spans: Spans, advance: Callable[[int], None]) -> Iterator[list[Row]]:
        for batch in self._reader.read(spans, advance):
            yield [
                Row(at, message.topic(), _bytes(message.key()), _bytes(message.value()))
                for at, message in batch
            ]


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def shown(data: bytes | None, most: int = 60) -> str | None:
    """Return bytes as text that is safe to print, truncated to ``most`` characters."""
    if data is None:
        return None
    # A character has at most four bytes.
    text = escaped(data[: 4 * most + 4].decode("utf-8", "backslashreplace"), keep="")
    return text if len(text) <= most else f"{text[:most]}..."


class ParquetRows:
    """The rows of a Parquet file, or of all files below a directory; opening reads only footers."""

    def __init__(self, path: str) -> None:
        self._path = without_credentials(path)
        path = for_arrow(path)
        try:
            # This skips names that begin with _ or ., such as Spark's _SUCCESS, and takes columns
            # from directory names, as written by Spark's partitionBy.
            files = dataset.dataset(path, format=_FORMAT, partitioning="hive")
            schemas = [
                (fragment.path, fragment.physical_schema) for fragment in files.get_fragments()
            ]
            if not schemas:
                raise ConfigurationError(f"--expect {self._path!r} holds no Parquet file")
            inside = {name for _, schema in schemas for name in schema.names}
            # The dataset's schema comes from its first file and the directory names.
            names = [name for name in ("key", "topic") if name in {*inside, *files.schema.names}]
            for file, schema in schemas:
                _check(file, schema, [_VALUE, *(name for name in names if name in inside)])
            self._columns = [_VALUE, *names]
            self.has_key = "key" in names
            self.has_topic = "topic" in names
            # Set the types, because topics in directory names may look like numbers.
            self._schema = pa.schema(
                [(name, pa.large_binary()) for name in self._columns if name != "topic"]
                + [("topic", pa.string())] * ("topic" in names)
            )
            self._files = list(
                dataset.dataset(
                    path, format=_FORMAT, partitioning="hive", schema=self._schema
                ).get_fragments()
            )
            self.total: int = sum(file.metadata.num_rows for file in self._files)
        except (OSError, UnicodeError, pa.ArrowException) as error:
            why = without_credentials(str(error))
            raise ConfigurationError(f"--expect {self._path!r} can't be opened: {why}") from None

    def read(self, advance: Callable[[int], None]) -> Iterator[list[Row]]:
        """Yield all rows in batches, file by file."""
        for index in range(len(self._files)):
            for batch in self._read(index):
                yield batch
                advance(len(batch))

    def pick(self, numbers: Collection[int]) -> Iterator[Row]:
        """Yield some rows; read each of their files up to the last of these rows."""
        for index in sorted({number >> _SHIFT for number in numbers}):
            wanted = {number for number in numbers if number >> _SHIFT == index}
            for batch in self._read(index):
                rows = [row for row in batch if row.number in wanted]
                yield from rows
                wanted -= {row.number for row in rows}
                if not wanted:
                    break

    def name(self, number: int) -> str:
        """Return ``file:row``, with rows counted from 0."""
        return f"{self._files[number >> _SHIFT].path.rpartition('/')[2]}:{number & _ROWS}"

    def _read(self, index: int) -> Iterator[list[Row]]:
        number = index << _SHIFT
        try:
            for batch in self._files[index].to_batches(
                schema=self._schema,
                columns=self._columns,
                batch_size=_AT_ONCE,
                # Threads would read ahead, too.
                use_threads=False,
            ):
                columns = [self._column(batch, name) for name in ("topic", "key", _VALUE)]
                yield [Row(number + at, *row) for at, row in enumerate(zip(*columns, strict=True))]
                number += batch.num_rows
        except (OSError, UnicodeError, pa.ArrowException) as error:
            why = without_credentials(str(error))
            raise VerificationError(f"--expect {self._path!r} can't be read: {why}") from None

    def _column(self, batch: Any, name: str) -> list[Any]:
        if name in self._columns:
            return batch.column(name).to_pylist()  # type: ignore[no-any-return]
        return [None] * batch.num_rows


def _check(file: str, schema: Any, required: list[str]) -> None:
    for name in required:
        if name not in schema.names:
            raise ConfigurationError(
                f"--expect: {file} has no column {name!r}, only {', '.join(schema.names)}; rows "
                "need 'value', and may have 'key' and 'topic'"
            )
    for name in {_VALUE, "key", "topic"} & set(schema.names):
        kind = schema.field(name).type
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        if str(plain) not in _TYPES and not pa.types.is_fixed_size_binary(plain):
            raise ConfigurationError(
                f"--expect: column {name!r} of {file} is {kind}; it must be binary or string, "
                "as Kafka's records are: cast it as your query does"
            )
