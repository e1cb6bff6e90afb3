"""The columns of dead letters: a row's error, and the source record that the row came from."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_eos._spark.columns import LETTER_FIELDS, SOURCE, check_not_void, payload
from spark_eos._worker.dead_letters import ERROR, LETTER, RECORD
from spark_eos.errors import UnsupportedPipelineError

ERROR_TEXTS: Final = ("message", "exception", "stacktrace")
"""The fields of the ``error`` column that guarded functions and `spark_eos.schemas` add."""
ERROR_FIELD: Final = T.StructField(
    ERROR, T.StructType([T.StructField(name, T.StringType()) for name in ERROR_TEXTS])
)
"""The error, either as a column of its own or as a field of ``source``."""


def check_error_column(schema: T.StructType, *, dead_letters: bool = True) -> None:
    if not dead_letters:
        if has_error_column(schema):
            raise UnsupportedPipelineError(
                "`error` comes from a guarded function, or from a decoded or encoded column, and "
                "there is no dead-letter topic: rows with an error would be written as nulls. Set "
                "dead_letters, or handle these rows yourself and drop the column"
            )
        return
    if schema.names.count(ERROR) > 1:
        raise UnsupportedPipelineError(f"there is more than one `{ERROR}` column")
    if ERROR not in schema.names or isinstance(schema[ERROR].dataType, T.StringType):
        return
    kind = schema[ERROR].dataType
    fields = kind.fields if isinstance(kind, T.StructType) else []
    texts = {f.name for f in fields if isinstance(f.dataType, T.StringType)}
    check_not_void({ERROR: kind}, ERROR, "string")
    if "message" not in texts or not texts <= set(ERROR_TEXTS) or len(texts) < len(fields):
        raise UnsupportedPipelineError(
            f"`{ERROR}` is {kind.simpleString()}: with dead_letters it must be a string, or "
            "struct<message:string,exception:string,stacktrace:string> as in the `error` of "
            "guarded functions. Null means that the row is fine"
        )


def has_error_column(schema: T.StructType) -> bool:
    """Return True if there is an ``error`` column like those of `guarded`, `decode`, `encode`."""
    kind = schema[ERROR].dataType if ERROR in schema.names else None
    return isinstance(kind, T.StructType) and kind.names == list(ERROR_TEXTS)


def with_letter_fields(frame: DataFrame, *, include_headers: bool) -> DataFrame:
    """Add ``source``, with the record and room for an error, to a Kafka source's columns."""
    error = F.lit(None).cast(ERROR_FIELD.dataType).alias(ERROR)
    names = (name for name in LETTER_FIELDS if name != ERROR)
    whole = frame.withColumn(SOURCE, F.struct("topic", "partition", "offset", *names, error))
    return whole if include_headers else whole.drop("headers")


def carries_letter(schema: T.StructType) -> bool:
    kind = schema[SOURCE].dataType if SOURCE in schema.names else None
    if not isinstance(kind, T.StructType) or not set(LETTER_FIELDS) <= set(kind.names):
        return False
    return has_error_column(kind)


def place_only(schema: T.StructType) -> Column:
    source = F.col(SOURCE)
    if not carries_letter(schema):
        return source
    place = [source[name].alias(name) for name in ("topic", "partition", "offset")]
    return F.struct(*place).alias(SOURCE)


def _letter_columns(schema: T.StructType) -> list[Column]:
    """Return the columns that tasks need in addition to the payload."""
    if not carries_letter(schema):
        return [F.col(ERROR)] if ERROR in schema.names else []
    error = _error(schema)
    # A row of an outer join may have an error but no source.
    record = F.when(F.col(SOURCE).isNotNull(), _record())
    return [_as_letter(error, record.alias("record"))]


def _record() -> Column:
    """Return the source record that ``source`` carries."""
    source = F.col(SOURCE)
    # Cast to binary, whatever types the query gave the columns: JSON holds binary as base64.
    fields = [source[name].cast("binary").alias(name) for name in ("key", "value")]
    fields.append(source["headers"].alias("headers"))
    # Use a number: JSON would write a timestamp in the session's time zone.
    fields.append(F.unix_millis(source["timestamp"]).alias("timestamp"))
    return F.struct(*fields)


def _as_letter(error: Column, *record: Column) -> Column:
    # Use one string, and only for rows with an error. A struct would hold a null for each field in
    # every other row, and filling Arrow's vectors with nulls would take longer than all other work.
    return F.when(error.isNotNull(), F.to_json(F.struct(error.alias("error"), *record))).alias(
        LETTER
    )


def _error(schema: T.StructType) -> Column:
    """Return a row's error: the one in ``source``, which came first, or else the query's own."""
    carried = F.col(SOURCE)[ERROR]
    if ERROR not in schema.names:
        return carried
    own, kind = F.col(ERROR), schema[ERROR].dataType
    names = kind.names if isinstance(kind, T.StructType) else []
    fields = {name: own[name] for name in names} or {"message": own}
    texts = [fields.get(name, F.lit(None)).cast("string").alias(name) for name in ERROR_TEXTS]
    return F.coalesce(carried, F.when(own.isNotNull(), F.struct(*texts)))


def direct_columns(schema: T.StructType) -> list[Column]:
    chosen = [F.col(name) for name in payload(schema)]
    return [place_only(schema), *chosen, *_letter_columns(schema)]


def staged_columns(schema: T.StructType) -> list[Column]:
    """Return the columns to stage if there may be dead letters: payload, errors and records.

    All versions stage the same columns: an earlier version may be the one that commits the batch,
    and would write a row as a good one if the error were in a column that it does not know.
    """
    chosen = [F.col(name) for name in payload(schema)]
    if not carries_letter(schema):
        return [*chosen, *_letter_columns(schema)]
    error = _error(schema)
    record = F.when(error.isNotNull() & F.col(SOURCE).isNotNull(), F.to_json(_record()))
    return [*chosen, error.alias(ERROR), record.alias(RECORD)]


def columns_of_copy(schema: T.StructType) -> list[Column]:
    """Return the columns that tasks need from a staged copy that may have dead letters."""
    chosen = [F.col(name) for name in payload(schema)]
    if RECORD in schema.names:
        return [*chosen, _as_letter(F.col(ERROR)), F.col(RECORD)]
    return [*chosen, *(F.col(name) for name in (ERROR, LETTER) if name in schema.names)]
