"""The query that a command is about: its options, and the connections to its cluster."""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import click
from rich.console import Console

from spark_eos.client.checks import check_text
from spark_eos.client.settings import ClientSettings
from spark_eos.errors import SparkEosError
from spark_eos.jobs.options import client_options, decorated
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline

# What has no terminal to measure: a file, a pipe.
_WIDTH: Final = 100


@dataclass(frozen=True)
class Query:
    """A query, by what its sink was given.

    Attributes:
        client: Client settings.
        group_id: Its consumer group.
        prefix: Its ``transactional_id_prefix``.
        timeout: Seconds that the cluster may take for everything.
    """

    client: ClientSettings
    group_id: str
    prefix: str
    timeout: float

    def deadline(self) -> Deadline:
        """The timeout, from now on."""
        return Deadline(self.timeout, "--timeout")


prefix_option: Final = click.option(
    "--prefix",
    default="spark-eos",
    show_default=True,
    help="The query's transactional_id_prefix.",
)
_OPTIONS: Final = (
    click.option("--group-id", required=True, metavar="GROUP", help="The query's consumer group."),
    prefix_option,
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=15,
        show_default=True,
        metavar="SECONDS",
        help="How long the cluster may take to answer.",
    ),
)


def query_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a click command the options that name a query, which it receives as ``query``.

    What spark-eos raises on purpose ends the command with one line and exit status 1.
    """

    @functools.wraps(command)
    def with_options(
        *,
        group_id: str,
        prefix: str,
        kafka: Mapping[str, str],
        timeout: float,
        **rest: Any,
    ) -> None:
        try:
            check_text("--group-id", group_id)
            # Under its name in Python, which the check knows.
            check_text("transactional_id_prefix", prefix)
            client = ClientSettings(kafka)
            command(query=Query(client, group_id, prefix, timeout), **rest)
        except SparkEosError as error:
            raise click.ClickException(str(error)) from error

    return client_options(decorated(with_options, _OPTIONS))


@contextmanager
def connected(query: Query) -> Iterator[Wire]:
    """Connections to the query's cluster, which can be reached."""
    with closing(Wire(query.client, request_timeout=min(10.0, query.timeout))) as wire:
        # First of all: in a later call, "unreachable" would only be the cause of its failure.
        wire.brokers(query.deadline())
        yield wire


def terminal() -> Console:
    """Standard output: as wide as the terminal, or 100 columns where there is none."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
