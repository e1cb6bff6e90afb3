"""Topics that a command creates: ``NAME[:PARTITIONS]``."""

from typing import Final

import click

from spark_eos._client.kafka_python import ensure_valid_topic_name

METAVAR: Final = "NAME[:PARTITIONS]"

_MOST: Final = 1_000


def new_topics(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, int]:
    """Partitions by name, of an option's values."""
    found: dict[str, int] = {}
    for text in values:
        name, colon, number = text.partition(":")
        try:
            ensure_valid_topic_name(name)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice")
        if colon and not (number.isascii() and number.isdigit() and 1 <= int(number) <= _MOST):
            raise click.BadParameter(f"{text!r} is not NAME or NAME:PARTITIONS, from 1 to {_MOST}")
        found[name] = int(number or 1)
    return found
