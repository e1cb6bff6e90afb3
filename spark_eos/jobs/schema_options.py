"""Command-line options of jobs that read and write records with schemas from a registry."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click
from pyspark.sql import DataFrame

from spark_eos.errors import ConfigurationError
from spark_eos.jobs.client_options import decorated, setting_options
from spark_eos.schemas import SchemaRegistry

_COLUMNS: Final = ("value", "key")


@dataclass(frozen=True)
class Recoding:
    """Reads columns with the schemas of one registry and writes them with those of another."""

    source: SchemaRegistry
    target: SchemaRegistry
    subjects: Mapping[str, tuple[str, str]]  # source and target subjects, keyed by column

    def __call__(self, frame: DataFrame, *, errors: str) -> DataFrame:
        """Return the frame with its columns recoded; ``errors`` as for `SchemaRegistry.decode`."""
        for column, (source, target) in self.subjects.items():
            frame = self.source.decode(frame, column, subject=source, errors=errors)
            frame = self.target.encode(frame, column, subject=target, errors=errors)
        return frame


def _subject_options() -> Iterator[Callable[..., Any]]:
    for column in _COLUMNS:
        yield click.option(
            f"--{column}-subject",
            metavar="SUBJECT",
            help=f"Write {column}s with this subject's latest schema; by default, {column}s are "
            "copied as they are.",
        )
        yield click.option(
            f"--source-{column}-subject",
            metavar="SUBJECT",
            help=f"Subject to read {column}s with, if it differs from --{column}-subject.",
        )


_own_registry: Final = setting_options(
    "schema-registry",
    "Setting of the schema registry by its confluent-kafka name, such as "
    "url=http://localhost:8081; repeatable.",
    "File of registry settings, one KEY=VALUE per line. Use it for secrets.",
)
_source_registry: Final = setting_options(
    "source-schema-registry",
    "Like --schema-registry, but for source records that use another registry.",
    "Like --schema-registry-config, but for the source's registry.",
)


def schema_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add schema options as one ``recoding`` argument: a `Recoding`, or None without a subject."""

    @functools.wraps(command)
    def with_recoding(
        *,
        schema_registry: Mapping[str, str],
        source_schema_registry: Mapping[str, str],
        **rest: Any,
    ) -> None:
        subjects = {}
        for column in _COLUMNS:
            target, source = rest.pop(f"{column}_subject"), rest.pop(f"source_{column}_subject")
            if target is not None:
                subjects[column] = (target if source is None else source, target)
            elif source is not None:
                raise click.UsageError(f"--source-{column}-subject needs --{column}-subject.")
        command(recoding=_recoding(schema_registry, source_schema_registry, subjects), **rest)

    return _own_registry(_source_registry(decorated(with_recoding, [*_subject_options()])))


def _recoding(
    own: Mapping[str, str], others: Mapping[str, str], subjects: Mapping[str, tuple[str, str]]
) -> Recoding | None:
    if not subjects:
        if own or others:
            raise click.UsageError("A schema registry needs --value-subject or --key-subject.")
        return None
    if not own:
        raise click.UsageError("Subjects need --schema-registry url=... or a file with it.")
    try:
        target = SchemaRegistry(own)
        return Recoding(SchemaRegistry(others) if others else target, target, subjects)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
