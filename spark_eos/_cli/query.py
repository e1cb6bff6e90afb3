"""The query that a command concerns: its options, and the connections to its cluster."""

import functools
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import click
from rich.console import Console

from spark_eos._client.checks import check_text
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections, reached
from spark_eos._kafka.deadline import Deadline
from spark_eos.errors import SparkEosError
from spark_eos.jobs.client_options import client_options, decorated

# Columns for files and pipes.
_WIDTH: Final = 100


@dataclass(frozen=True)
class Cluster:
    """A cluster that a command asks.

    Attributes:
        client: Client settings.
        timeout: Seconds to wait for it, per step of the command.
    """

    client: ClientSettings
    timeout: float

    def deadline(self) -> Deadline:
        """Returns a deadline that begins now."""
        return Deadline(self.timeout, "--timeout")


@dataclass(frozen=True)
class Query(Cluster):
    """A query, identified by the arguments of its sink.

    Attributes:
        group_id: The query's consumer group.
        prefix: The query's ``transactions.id_prefix``.
    """

    group_id: str
    prefix: str


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
_QUERY: Final = (
    click.option("--group-id", required=True, metavar="GROUP", help="The query's consumer group."),
    prefix_option,
)


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a cluster to a click command, which receives a `Cluster`.

    A `SparkEosError` ends the command with its message and exit status 1, without a traceback.
    """

    @functools.wraps(command)
    def with_cluster(*, kafka: Mapping[str, str], timeout: float, **rest: Any) -> None:
        try:
            command(cluster=Cluster(ClientSettings(kafka), timeout), **rest)
        except SparkEosError as error:
            raise click.ClickException(str(error)) from error

    return client_options(decorated(with_cluster, [_timeout_option]))


def query_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that identify a query, which the command receives as a `Query`."""

    @functools.wraps(command)
    def with_query(*, cluster: Cluster, group_id: str, prefix: str, **rest: Any) -> None:
        check_text("--group-id", group_id)
        # By its name in Python, which the check has special rules for.
        check_text("transactions.id_prefix", prefix)
        command(query=Query(cluster.client, cluster.timeout, group_id, prefix), **rest)

    return cluster_options(decorated(with_query, _QUERY))


def connected(cluster: Cluster) -> AbstractContextManager[Connections]:
    """Connects to a cluster; fails if it can't be reached."""
    return reached(cluster.client, cluster.timeout, "--timeout")


def check_reached(cluster: Cluster) -> None:
    """Says why a cluster can't be reached, for commands of librdkafka, which doesn't."""
    with connected(cluster):
        pass


def terminal() -> Console:
    """Returns standard output, as wide as the terminal, or 100 columns otherwise."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
