"""``spark-eos broker`` and ``spark-eos registry``: servers for experiments."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import click

from spark_eos._cli.query import end_at
from spark_eos._cli.topics import METAVAR, new_topics
from spark_eos.testing import EmbeddedKafka, EmbeddedSchemaRegistry, KafkaNode

_port_option: Final = click.option(
    "--port", type=click.IntRange(1, 65535), help="Port to listen on; by default a free one."
)


@click.command()
@_port_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    callback=new_topics,
    metavar=METAVAR,
    help="Topic to create, with 1 partition by default; repeatable.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of nodes; with --port, they listen on that port and the next ones.",
)
def broker(port: int | None, topics: Mapping[str, int], nodes: int) -> None:
    """Run Kafka on 127.0.0.1 until Ctrl-C.

    Prints the brokers' addresses on stdout as soon as Kafka and the topics are ready. Removes all
    data when it stops. With three nodes, any one of them may be killed.
    """
    try:
        kafka = EmbeddedKafka(nodes=nodes, port=port)
    except ValueError as error:
        raise click.UsageError(f"--port: {error}") from error

    def ready() -> str:
        for name, partitions in topics.items():
            kafka.create_topic(name, partitions)
        return kafka.bootstrap_servers

    _serve(kafka, "Kafka", ready, kafka.nodes)


@click.command()
@_port_option
def registry(port: int | None) -> None:
    """Run a schema registry on 127.0.0.1 until Ctrl-C.

    The server is Apicurio Registry, with the API of Confluent's registry. Prints its URL on stdout
    as soon as it is ready: clients need the whole URL, including the path. Removes all schemas when
    it stops.

    \b
    Example: spark-eos registry --port 8081
             curl http://127.0.0.1:8081/apis/ccompat/v7/subjects
    """  # noqa: D301 - click needs the character itself
    server = EmbeddedSchemaRegistry(port=port)
    _serve(server, "The schema registry", lambda: server.url, [server])


def _serve(
    server: EmbeddedKafka | EmbeddedSchemaRegistry,
    name: str,
    address: Callable[[], str],
    processes: Sequence[KafkaNode | EmbeddedSchemaRegistry],
) -> None:
    """Run a server until Ctrl-C; ``address`` prepares the server and returns the line to print."""
    end_at(signal.SIGINT, signal.SIGTERM)
    try:
        with server:
            click.echo(address())
            pids = ", ".join(str(process.pid) for process in processes)
            click.echo(
                f"{name} is running, as process {pids}. "
                "Press Ctrl-C to stop it and remove its data.",
                err=True,
            )
            while any(process.is_running for process in processes):
                time.sleep(0.2)
            raise click.ClickException(f"{name} ended unexpectedly. Its log:\n{server.log()}")
    except KeyboardInterrupt:
        click.echo("Stopped.", err=True)
