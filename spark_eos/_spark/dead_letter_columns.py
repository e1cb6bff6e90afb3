"""The columns of dead letters: a row's error, and the source record that the row came from."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_eos._spark.columns import LETTER_FIELDS, SOURCE, check_not_void, payload
from spark_eos._worker.dead_letters import ERROR, FOR_LETTERS, LETTER
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


def letter_columns(schema: T.StructType) -> list[Column]:
    """Return the columns that tasks need in addition to the payload."""
    if not carries_letter(schema):
        return [F.col(ERROR)] if ERROR in schema.names else []
    source, error = F.col(SOURCE), _error(schema)
    # Cast to binary, whatever types the query gave the columns: JSON holds binary as base64.
    fields = [source[name].cast("binary").alias(name) for name in ("key", "value")]
    fields.append(source["headers"].alias("headers"))
    # Use a number: JSON would write a timestamp in the session's time zone.
    fields.append(F.unix_millis(source["timestamp"]).alias("timestamp"))
    # A row of an outer join may have an error but no source.
    record = F.when(source.isNotNull(), F.struct(*fields))
    # Use one string, and only for rows with an error. A struct would hold a null for each field in
    # every other row, and filling Arrow's vectors with nulls would take longer than all other work.
    dead_letter = F.to_json(F.struct(error.alias("error"), record.alias("record")))
    return [F.when(error.isNotNull(), dead_letter).alias(LETTER)]


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
    return [place_only(schema), *chosen, *letter_columns(schema)]


def staged_columns(schema: T.StructType) -> list[Column]:
    """Return the columns to stage if there may be dead letters: payload, errors and records."""
    return [*(F.col(name) for name in payload(schema)), *letter_columns(schema)]


def staged_names(schema: T.StructType) -> list[str]:
    return [*payload(schema), *(name for name in FOR_LETTERS if name in schema.names)]
