"""Finds a task's rows that can't be written as they are, and makes dead letters from them."""

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_eos._client.letter_headers import REPLACED, Header, write_letter_headers
from spark_eos._worker import dead_letter_settings as reasons
from spark_eos._worker.dead_letter_settings import DeadLetterSettings
from spark_eos._worker.records import RecordContent, RowTopics, SourceRows, column_of, text_in

ERROR: Final = "error"
"""The column in which the query itself reports a row's error."""
LETTER: Final = "spark_eos_letter"
"""The column that holds a bad row's error and source record, as JSON."""
RECORD: Final = "spark_eos_record"
"""The column of a staged copy that holds a bad row's source record, as JSON."""
FOR_LETTERS: Final = (ERROR, LETTER, RECORD)

# A header's maximum size in bytes: a long stack trace must not make a dead letter too large.
_MAX_TEXT: Final = 8_192
# The same for a dead letter that is too large even without its record.
_BRIEF_TEXT: Final = 200
_LONG: Final = ("message", "exception", "stacktrace", "omitted")
# Used as the number of partitions of an unknown topic: no 32-bit partition number reaches it.
_MOST_PARTITIONS: Final = 1 << 31


@dataclass(frozen=True)
class Fault:
    """Why a row is a dead letter; its reason is one of `spark_eos._worker.dead_letter_settings`."""

    reason: str
    message: str
    exception: str | None = None
    stacktrace: str | None = None


def rows_with_error(part: SourceRows) -> dict[int, Fault]:
    """Return a fault for each row that the query marked with an error, by row number."""
    faults: dict[int, Fault] = {}
    for name in (ERROR, LETTER):
        column = column_of(part.rows, name)
        if column is not None and column.null_count < len(column):
            # Convert only the rows with an error to Python values: there are few of them.
            for row in pc.indices_nonzero(column.is_valid()).to_pylist():
                faults[row] = _fault(
                    _own_error(column, row)
                    if name == ERROR
                    else json.loads(column[row].as_py())["error"]
                )
    return faults


def _own_error(column: pa.Array, row: int) -> str | Mapping[str, str | None] | None:
    """Return an error as the query made it: a string, or a struct of strings."""
    if not pa.types.is_struct(column.type):
        return text_in(column, row)
    return {field.name: text_in(column.field(field.name), row) for field in column.type}


def _fault(error: Any) -> Fault:
    if isinstance(error, str):
        return Fault(reasons.ERROR, error)
    exception = error.get("exception")
    reason = reasons.ERROR if exception is None else reasons.EXCEPTION
    return Fault(reason, error.get("message") or "", exception, error.get("stacktrace"))


def rows_for_unknown_partition(
    part: SourceRows, topics: RowTopics, partitions: Mapping[str, int]
) -> dict[int, Fault]:
    """Return faults for rows that name a partition that their topic does not have, by row.

    Like Spark's own sink, refuse partitions below 0. If the partition is null, the key decides.
    """
    column = column_of(part.rows, "partition")
    if column is None or column.null_count == len(column):
        return {}
    named = np.asarray(pc.fill_null(column, 0))
    counts = np.array([partitions.get(name or "", _MOST_PARTITIONS) for name in topics.names])
    faults = {}
    for row in np.flatnonzero((named < 0) | (named >= counts[topics.codes])).tolist():
        text = f"partition {named[row]} is below 0; leave it null to let the key decide"
        if named[row] >= 0:
            number = counts[topics.codes[row]]
            text = f"topic {topics[row]!r} has {number} partitions, and no partition {named[row]}"
        faults[row] = Fault(reasons.UNKNOWN_PARTITION, text)
    return faults


def greatest_partitions(
    part: SourceRows, topics: RowTopics, rows: Collection[int]
) -> dict[str, int]:
    """Return how many partitions each topic would need for these rows."""
    column = part.rows.column("partition")
    wanted: dict[str, int] = {}
    for row in rows:
        topic, number = topics[row], column[row].as_py()
        if topic is not None and number >= 0:
            wanted[topic] = max(wanted.get(topic, 0), number + 1)
    return wanted


def carried_record(part: SourceRows, row: int) -> tuple[RecordContent | None, bool]:
    """Return the source record that a row carries, if any, and True if rereading adds nothing.

    Spark changes header names that are not UTF-8, so a record with such a header has to be read
    again.
    """
    carried: Mapping[str, Any] | None = None
    for name in (RECORD, LETTER):
        column = column_of(part.rows, name)
        text = None if column is None else column[row].as_py()
        if text is not None:
            content = json.loads(text)
            carried = content if name == RECORD else content.get("record", carried)
    if carried is None:
        return None, False
    headers = [(header["key"], _bytes(header)) for header in carried.get("headers") or ()]
    names = "".join(name for name, _ in headers)
    # A header that can't be written must not be mistaken for one of ours.
    readable = None if "\0" in names or REPLACED in names else headers
    record = RecordContent(
        _bytes(carried, "key"), _bytes(carried), readable, carried.get("timestamp")
    )
    return record, "\0" in names or REPLACED not in names


def _bytes(fields: Mapping[str, str | None], name: str = "value") -> bytes | None:
    # Spark's JSON encodes binary values as base64 and, by default, leaves out nulls.
    content = fields.get(name)
    return None if content is None else base64.b64decode(content)


def without_largest(record: RecordContent, *, keep_key: bool) -> tuple[RecordContent, str] | None:
    """Return the record without its largest part, and which part that was; None if it is empty."""
    sizes = {
        "value": len(record.value or b""),
        "key": 0 if keep_key else len(record.key or b""),
        "headers": sum(len(n.encode()) + len(text or b"") for n, text in record.headers or ()),
    }
    part = max(sizes, key=lambda name: sizes[name])
    if not sizes[part]:
        return None
    left: Any = {"value": None, "key": None, "headers": ()}[part]
    return record._replace(**{part: left}), f"{part} of {sizes[part]} bytes"


def letter_headers(
    settings: DeadLetterSettings,
    group_id: str,
    part: SourceRows,
    row: int,
    fault: Fault,
    record: RecordContent,
    *,
    # True if the source record is gone, so that the row itself takes its place.
    is_row: bool,
    omitted: Sequence[str],
    # True if the explanation must be short.
    brief: bool,
) -> list[Header]:
    """Return a dead letter's headers: the record's own, then the headers that explain it."""
    explaining: dict[str, str | None] = {}
    if settings.positions:
        explaining["topic"] = part.source.topic
        explaining["partition"] = str(part.source.partition)
        explaining["offset"] = str(part.offsets[row].as_py())
        explaining["cluster"] = settings.cluster
        # Readers expect the record at this position, so say if the row takes its place.
        explaining["record"] = "row" if is_row else None
    explaining |= {
        "group": group_id,
        "message": fault.message,
        "reason": fault.reason,
        "exception": fault.exception,
        "stacktrace": fault.stacktrace if settings.stacktrace and not brief else None,
        "timestamp": None if record.timestamp is None else str(record.timestamp),
        "omitted": "; ".join(omitted) or None,
    }
    most = _BRIEF_TEXT if brief else _MAX_TEXT
    texts = {
        # Only the query's own texts can be long.
        name: _cut(text, most if name in _LONG else _MAX_TEXT)
        for name, text in explaining.items()
        if text is not None
    }
    return write_letter_headers(settings.headers, record.headers or (), texts)


def _cut(text: str, most: int) -> bytes:
    """Encode a text in at most ``most`` bytes, without a partial character at the end."""
    encoded = text[:most].encode("utf-8", "backslashreplace")[:most]
    return encoded.decode("utf-8", "ignore").encode()


def letter_rows(dead_letters: Sequence[RecordContent]) -> pa.RecordBatch:
    """Return dead letters as the rows of an Arrow batch."""
    names = ("key", "value")
    headers = [[dict(zip(names, h, strict=True)) for h in x.headers or ()] for x in dead_letters]
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    columns = {
        "key": pa.array([record.key for record in dead_letters], pa.large_binary()),
        "value": pa.array([record.value for record in dead_letters], pa.large_binary()),
        "partition": pa.array([record.partition for record in dead_letters], pa.int32()),
        "headers": pa.array(headers, pa.list_(header)),
    }
    return pa.RecordBatch.from_pydict(columns)
