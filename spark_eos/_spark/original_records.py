"""Restores the records that dead letters were made from."""

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_eos._client.header_values import MAX_OFFSET, header_number
from spark_eos._kafka.dead_letter_topic import letter_of
from spark_eos._spark.columns import SOURCE
from spark_eos._spark.names import with_known_names
from spark_eos.errors import UnsupportedPipelineError

_NEEDED: Final = ("key", "value", "headers", "timestamp")
_TEXTS: Final = ("cluster", "group", "reason", "message", "exception", "stacktrace", "record")
_TYPE: Final = (
    "headers array<struct<key: string, value: binary>>, timestamp bigint, dead_letter struct<"
    f"topic: string, partition: int, offset: bigint, {', '.join(f'{t}: string' for t in _TEXTS)}, "
    "incomplete: string>"
)


def original_records(dead_letters: DataFrame) -> DataFrame:
    """Restore the records that dead letters were made from.

    Use this function to write dead letters again, unchanged or repaired: a query that reads the
    dead-letter topic and writes the rows that this function returns writes each dead letter once.
    ``jobs/replay_dead_letters.py`` is such a query.

    Args:
        dead_letters: Rows of a dead-letter topic, with the columns that `ExactlyOnceSink.read`
            returns with ``include_headers=True``, or the columns of Spark's Kafka source with
            ``includeHeaders``.

    Returns:
        ``source``, if the frame has it: the dead letter's own position, which
        `ExactlyOnceSink.write` needs; ``key`` and ``value``; ``headers`` and ``timestamp`` of the
        original record; and ``dead_letter``, a struct of:

        - ``topic``, ``partition``, ``offset``: the original record's position; null if the dead
            letter does not give it.
        - ``cluster``: the cluster of that topic, if it is a different one.
        - ``group``, ``reason``, ``message``, ``exception``, ``stacktrace``: who wrote the dead
            letter, and why.
        - ``record``: ``row`` if key and value come from a row, not from the original record.
        - ``incomplete``: what is missing, such as ``omitted: value of 2000000 bytes``; null if
            nothing is.

        Anyone who may write to the dead-letter topic can forge all of these fields.

    Raises:
        UnsupportedPipelineError: A column is missing.

    Examples:
        ::

            dead_letters = sink.read(spark, subscribe="orders-dlq", include_headers=True)
            records = original_records(dead_letters).where("dead_letter.reason = 'error'")
            query = sink.write(records).trigger(availableNow=True).start()
    """
    dead_letters = with_known_names(dead_letters, (SOURCE, *_NEEDED))
    if missing := [name for name in _NEEDED if name not in dead_letters.columns]:
        raise UnsupportedPipelineError(
            f"the dead letters have no column {', '.join(missing)}: original_records needs the "
            "columns of sink.read(..., include_headers=True)"
        )
    # With Arrow, the values would be NumPy arrays.
    restore = F.udf(_restored, _TYPE, useArrow=False)
    rows = dead_letters.withColumn("restored", restore("headers", F.unix_millis("timestamp")))
    kept = [SOURCE] if SOURCE in dead_letters.columns else []
    timestamp = F.timestamp_millis("restored.timestamp").alias("timestamp")
    names = ("key", "value", "restored.headers", timestamp, "restored.dead_letter")
    return rows.select(*kept, *names)


def _restored(headers: list[Any] | None, timestamp: int) -> tuple[Any, ...]:
    pairs = ((name, None if value is None else bytes(value)) for name, value in headers or ())
    dead_letter = letter_of(tuple(pairs), timestamp)
    error_headers, source = dead_letter.error_headers, dead_letter.source
    offset = header_number(error_headers.get("offset"), MAX_OFFSET)
    position = (None,) * 3 if source is None else (*source, offset)
    fields = (*position, *map(error_headers.get, _TEXTS), dead_letter.incomplete)
    return list(dead_letter.own_headers), dead_letter.record_timestamp, fields
