"""Runs a server for experiments until it is interrupted."""

import signal
import time
from collections.abc import Callable

import click

from spark_eos._jars.ivy import DownloadError
from spark_eos._jars.jar_sets import JarError
from spark_eos._jars.java import JavaError
from spark_eos.testing import BrokerStartError, RegistryStartError
from spark_eos.testing.embedded_server import EmbeddedServer


def serve(server: EmbeddedServer, name: str, address: Callable[[], str]) -> None:
    """Start a server, print its address, and stop it at Ctrl-C.

    Args:
        server: The server.
        name: Its name in messages.
        address: Makes it ready, and returns its address.
    """
    # Also SIGINT: a shell starts background commands with it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with server:
            click.echo(address())
            click.echo(f"{name} is running. Press Ctrl-C to stop it and remove its data.", err=True)
            while server.is_running:
                time.sleep(0.2)
            raise click.ClickException(f"{name} ended unexpectedly. Its log:\n{server.log()}")
    except KeyboardInterrupt:
        click.echo("Stopped.", err=True)
    except (BrokerStartError, RegistryStartError, JarError, DownloadError, JavaError) as error:
        raise click.ClickException(str(error)) from error
