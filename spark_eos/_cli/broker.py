"""``spark-eos broker``."""

from collections.abc import Mapping

import click

from spark_eos._cli.new_topics import METAVAR, new_topics
from spark_eos._cli.serving import serve
from spark_eos.testing import EmbeddedKafka


@click.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port to listen on; by default a free one."
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    callback=new_topics,
    metavar=METAVAR,
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
