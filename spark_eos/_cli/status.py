"""``spark-eos status``."""

import signal
import time
from collections.abc import Mapping, Sequence

import click

from spark_eos._admin.status import Status, ask_status
from spark_eos._cli.query import Query, end_at, json_option, query_options, terminal
from spark_eos._cli.status_document import as_json
from spark_eos._client.settings import ClientSettings
from spark_eos.errors import SparkEosError
from spark_eos.jobs.client_options import source_client_options


@click.command()
@query_options
@source_client_options
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="TOPIC",
    help="A topic that the query writes to, to see what holds back its readers; repeatable.",
)
@json_option
@click.option(
    "--watch",
    type=click.FloatRange(min=0, min_open=True),
    is_flag=False,
    flag_value=2.0,
    metavar="[SECONDS]",
    help="Show it again every SECONDS, 2 by default, until Ctrl-C.",
)
def status(
    *,
    query: Query,
    source_kafka: Mapping[str, str] | None,
    targets: Sequence[str],
    json_: bool,
    watch: float | None,
) -> None:
    """Show the state of a query: its group, offsets, lag and open transactions.

    Only reads. Exit status 1 if there is no such group; 2 if a broker does not answer, and what it
    alone knows is unknown. The lag is unknown where the group has no offset. For the lag of a
    mirrored query, give --source-bootstrap-servers.
    """
    if watch is not None:
        end_at(signal.SIGINT)
    try:
        found = _status(query, source_kafka, targets)
        _show(found, json_=json_, clear=watch is not None)
        while watch is not None:
            time.sleep(watch)
            try:
                found = _status(query, source_kafka, targets)
            except SparkEosError as error:
                # A cluster that restarts, or a group that is gone for now.
                click.echo(f"Error: {error!s}", err=True)
            else:
                _show(found, json_=json_, clear=True)
    except KeyboardInterrupt:
        if watch is None:
            raise
        return
    if found.silent:
        raise SystemExit(2)


def _status(query: Query, source_kafka: Mapping[str, str] | None, targets: Sequence[str]) -> Status:
    return ask_status(
        query.client,
        query.group_id,
        query.prefix,
        query.timeout,
        "--timeout",
        source_client=None if source_kafka is None else ClientSettings(source_kafka),
        targets=targets,
    )


def _show(found: Status, *, json_: bool, clear: bool) -> None:
    if json_:
        click.echo(as_json(found))
        return
    console = terminal()
    if clear:
        console.clear()  # Only a terminal; in a file, one follows the other.
        console.print(time.strftime("%H:%M:%S"))
    console.print(found)
    if clear and not console.is_terminal:
        console.print()
