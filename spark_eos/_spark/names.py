"""Gives columns and fields the names that spark-eos knows, whatever their case in the query."""

from collections.abc import Collection, Iterable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_eos._spark.columns import LETTER_FIELDS, PLACE, SOURCE, WRITTEN
from spark_eos._spark.dead_letter_columns import ERROR_TEXTS
from spark_eos._worker.dead_letters import ERROR
from spark_eos.errors import UnsupportedPipelineError

_CASE_SENSITIVE: Final = "spark.sql.caseSensitive"
_FIELDS: Final = {
    SOURCE: (*PLACE, *LETTER_FIELDS),
    "headers": ("key", "value"),
    ERROR: ERROR_TEXTS,
}


def with_known_names(frame: DataFrame, names: Collection[str] = (*WRITTEN, ERROR)) -> DataFrame:
    """Rename columns and fields whose names differ from known names only by case."""
    # Spark ignores the case of names, but all later code compares names exactly, so every incoming
    # frame passes through here. Frames whose names already match cost no request to Spark.
    new = {field.name: _renamed(field, names) for field in frame.schema}
    if all(new[field.name] == field for field in frame.schema) or is_case_sensitive(frame):
        return frame
    _check_apart(frame.columns, names, "column")
    fields = {}
    for old in frame.schema:
        name, kind = new[old.name].name, new[old.name].dataType
        if kind != old.dataType:
            _check_fields(old.dataType, _FIELDS[name])
            fields[name] = F.col(name).cast(kind)
    # Don't select all columns: other columns may differ only by case, which would be ambiguous.
    changed = {old: field.name for old, field in new.items() if field.name != old}
    renamed = frame.withColumnsRenamed(changed)
    return renamed.withColumns(fields) if fields else renamed


def known_name(frame: DataFrame, name: str) -> str:
    """Return the column that Spark resolves a name to, or the name itself if there is none."""
    columns = [column for column in frame.columns if column.lower() == name.lower()]
    if columns in ([], [name]) or is_case_sensitive(frame):
        return name
    _check_apart(columns, [name.lower()], "column")
    return columns[0]


def is_case_sensitive(frame: DataFrame) -> bool:
    return str(frame.sparkSession.conf.get(_CASE_SENSITIVE)).lower() == "true"


def _renamed(column: T.StructField, names: Iterable[str]) -> T.StructField:
    name = _name(column.name, names)
    kind = column.dataType
    if name in _FIELDS and name in names:
        kind = _with_fields(kind, _FIELDS[name])
    return T.StructField(name, kind, column.nullable, column.metadata)


def _name(name: str, known: Iterable[str]) -> str:
    return next((own for own in known if own == name.lower()), name)


def _with_fields(kind: T.DataType, known: Iterable[str]) -> T.DataType:
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_with_fields(kind.elementType, known), kind.containsNull)
    if not isinstance(kind, T.StructType):
        return kind
    fields = []
    for field in kind:
        name = _name(field.name, known)
        own = _with_fields(field.dataType, _FIELDS[name]) if name in _FIELDS else field.dataType
        fields.append(T.StructField(name, own, field.nullable, field.metadata))
    return T.StructType(fields)


def _check_fields(kind: T.DataType, known: Iterable[str]) -> None:
    if isinstance(kind, T.ArrayType):
        kind = kind.elementType
    if isinstance(kind, T.StructType):
        _check_apart(kind.names, known, "field")


def _check_apart(names: Iterable[str], known: Iterable[str], what: str) -> None:
    for own in known:
        alike = {name for name in names if name.lower() == own}
        if len(alike) > 1:
            raise UnsupportedPipelineError(
                f"the {what}s {' and '.join(f'`{name}`' for name in sorted(alike))} differ only "
                "by case, and Spark can't tell them apart: drop all but one, or rename them"
            )
