"""``spark-eos broker``."""

import signal
import time

import click

from spark_eos._jars.ivy import DownloadError
from spark_eos._jars.jar_sets import JarError
from spark_eos._jars.java import JavaError
from spark_eos.testing import BrokerStartError, EmbeddedKafka


@click.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port to listen on; by default a free one."
)
def broker(port: int | None) -> None:
    """Run a single-node Kafka on 127.0.0.1 until Ctrl-C.

    Prints its address on stdout as soon as it is ready. Removes its data when it stops.
    """
    # Also SIGINT: a shell starts background commands with it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with EmbeddedKafka(port=port) as kafka:
            click.echo(kafka.bootstrap_servers)
            click.echo("Kafka is running. Press Ctrl-C to stop it and remove its data.", err=True)
            while kafka.is_running:
                time.sleep(0.2)
            raise click.ClickException(f"Kafka ended unexpectedly. Its log:\n{kafka.log()}")
    except KeyboardInterrupt:
        click.echo("Stopped.", err=True)
    except (BrokerStartError, JarError, DownloadError, JavaError) as error:
        raise click.ClickException(str(error)) from error
