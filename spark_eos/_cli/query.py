"""The query that a command concerns: its options, and the connections to its cluster."""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import click
from rich.console import Console

from spark_eos._client.checks import check_text
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos.errors import SparkEosError
from spark_eos.jobs.client_options import client_options, decorated

# Columns for files and pipes.
_WIDTH: Final = 100


@dataclass(frozen=True)
class Query:
    """A query, identified by the arguments of its sink.

    Attributes:
        client: Client settings.
        group_id: The query's consumer group.
        prefix: The query's ``transactions.id_prefix``.
        timeout: Seconds to wait for the cluster, per step of the command.
    """

    client: ClientSettings
    group_id: str
    prefix: str
    timeout: float

    def deadline(self) -> Deadline:
        """Returns a deadline that begins now."""
        return Deadline(self.timeout, "--timeout")


prefix_option: Final = click.option(
    "--prefix",
    default="spark-eos",
    show_default=True,
    help="The query's transactions.id_prefix.",
)
_timeout_option: Final = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=15,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the cluster.",
)
_OPTIONS: Final = (
    click.option("--group-id", required=True, metavar="GROUP", help="The query's consumer group."),
    prefix_option,
    _timeout_option,
)


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a cluster, which the command receives as ``client`` and ``timeout``.

    A `SparkEosError` ends the command with its message and exit status 1, without a traceback.
    """

    @functools.wraps(command)
    def with_options(*, kafka: Mapping[str, str], **rest: Any) -> None:
        try:
            command(client=ClientSettings(kafka), **rest)
        except SparkEosError as error:
            raise click.ClickException(str(error)) from error

    return client_options(decorated(with_options, [_timeout_option]))


def query_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that identify a query to a click command, which receives a `Query`.

    A `SparkEosError` ends the command with its message and exit status 1, without a traceback.
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
            # By its name in Python, which the check has special rules for.
            check_text("transactions.id_prefix", prefix)
            client = ClientSettings(kafka)
            command(query=Query(client, group_id, prefix, timeout), **rest)
        except SparkEosError as error:
            raise click.ClickException(str(error)) from error

    return client_options(decorated(with_options, _OPTIONS))


@contextmanager
def connected(query: Query) -> Iterator[Connections]:
    """Connects to the query's cluster; fails if it can't be reached."""
    with closing(
        Connections(query.client, request_timeout=min(10.0, query.timeout))
    ) as connections:
        # First of all, so that the error says "unreachable" and not which later call failed.
        connections.brokers(query.deadline())
        yield connections


def terminal() -> Console:
    """Returns standard output, as wide as the terminal, or 100 columns otherwise."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
