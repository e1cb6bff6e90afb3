"""Shared by all commands: cluster and query options, connections, the terminal, signals."""

import errno
import functools
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final, TypeAlias

import click
from rich.console import Console

from spark_eos._client.checks import check_prefix, check_text
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections, reached
from spark_eos._kafka.deadline import Deadline
from spark_eos.jobs.client_options import client_options

# Width of the output in files and pipes, in columns.
_WIDTH: Final = 100
_EPOCH: Final = datetime.fromtimestamp(0, timezone.utc)
_Option: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]


class NotKnownError(click.ClickException):
    """The answer is unknown, for example because brokers do not respond."""

    exit_code = 2


@dataclass(frozen=True)
class Cluster:
    """A cluster that a command connects to."""

    client: ClientSettings
    timeout: float  # seconds, per step of the command
    kafka: Mapping[str, str]  # the settings from which `client` was made

    def deadline(self) -> Deadline:
        """Return a deadline that starts now."""
        return Deadline(self.timeout, "--timeout")


@dataclass(frozen=True)
class Query(Cluster):
    """A query, identified by the arguments of its sink."""

    group_id: str
    prefix: str  # transactions.id_prefix


prefix_option: Final = click.option(
    "--prefix",
    default="spark-eos",
    show_default=True,
    help="The query's transactions.id_prefix.",
)
json_option: Final = click.option("--json", "json_", is_flag=True, help="Print one JSON document.")


def topics_option(name: str, argument: str, meaning: str, *, required: bool = False) -> _Option:
    """Return an option that names topics and can be repeated."""
    return click.option(
        name, argument, multiple=True, required=required, metavar="TOPIC", help=meaning
    )


class Seconds(click.FloatRange):
    """A number of seconds, up to a day."""

    def __init__(self) -> None:
        super().__init__(0, 86_400, min_open=True)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds: float = super().convert(value, param, ctx)
        # No comparison is true of NaN, so the range lets it pass.
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


def timeout_option(default: int, meaning: str) -> _Option:
    return click.option(
        "--timeout",
        type=Seconds(),
        default=default,
        show_default=True,
        metavar="SECONDS",
        help=meaning,
    )


group_option: Final = click.option(
    "--group-id", required=True, metavar="GROUP", help="The query's consumer group."
)


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a cluster to a click command, which receives a `Cluster`."""

    @functools.wraps(command)
    def with_cluster(*, kafka: Mapping[str, str], timeout: float, **rest: Any) -> None:
        client = ClientSettings(kafka).checked_by_librdkafka()
        command(cluster=Cluster(client, timeout, kafka), **rest)

    return client_options(timeout_option(15, "How long to wait for the cluster.")(with_cluster))


def query_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that identify a query, which the command receives as a `Query`."""

    @functools.wraps(command)
    def with_query(*, cluster: Cluster, group_id: str, prefix: str, **rest: Any) -> None:
        check_text("--group-id", group_id)
        check_prefix("--prefix", prefix)
        command(
            query=Query(cluster.client, cluster.timeout, cluster.kafka, group_id, prefix), **rest
        )

    return cluster_options(group_option(prefix_option(with_query)))


def connected(cluster: Cluster) -> AbstractContextManager[Connections]:
    """Connect to a cluster; fail if it can't be reached."""
    return reached(cluster.client, cluster.timeout, "--timeout")


def check_reached(cluster: Cluster) -> None:
    """Raise an error that says why a cluster can't be reached; librdkafka's errors don't."""
    with connected(cluster):
        pass


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error, as click.echo does; rich would end the program with status 1."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def terminal() -> Console:
    """Return standard output, as wide as the terminal; without a terminal, 100 columns wide."""
    return _Output(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)


def end_at(*signals: signal.Signals) -> None:
    """Make signals raise KeyboardInterrupt."""
    # Callers pass SIGINT too, because shells start background commands with SIGINT ignored.
    for number in signals:
        # nohup has SIGHUP ignored on purpose.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def moment(milliseconds: int) -> datetime | None:
    """Convert a record's timestamp to UTC; return None if Python has no date for it."""
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
