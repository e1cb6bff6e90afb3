"""``spark-eos broker``."""

from collections.abc import Mapping
from typing import Final

import click

from spark_eos._cli.serving import serve
from spark_eos._client.kafka_python import ensure_valid_topic_name
from spark_eos.testing import EmbeddedKafka

_MOST: Final = 1_000


def _topics(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, int]:
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


@click.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port to listen on; by default a free one."
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    callback=_topics,
    metavar="NAME[:PARTITIONS]",
    help="Topic to create, with 1 partition by default; repeatable.",
)
def broker(port: int | None, topics: Mapping[str, int]) -> None:
    """Run a single-node Kafka on 127.0.0.1 until Ctrl-C.

    Prints its address on stdout as soon as it and the topics are ready. Removes its data when it
    stops.
    """
    kafka = EmbeddedKafka(port=port)

    def ready() -> str:
        for name, partitions in topics.items():
            kafka.create_topic(name, partitions)
        return kafka.bootstrap_servers

    serve(kafka, "Kafka", ready)
