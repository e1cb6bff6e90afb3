"""``spark-eos status``."""

import contextlib
from collections.abc import Mapping

import click

from spark_eos.admin.status import query_status
from spark_eos.cli.query import Query, connected, query_options, terminal
from spark_eos.cli.status_document import as_json
from spark_eos.cli.status_tables import status_tables
from spark_eos.client.settings import ClientSettings
from spark_eos.jobs.client_options import source_client_options
from spark_eos.kafka.connection import Wire


@click.command()
@query_options
@source_client_options
@click.option("--json", "json_", is_flag=True, help="Print one JSON document.")
def status(*, query: Query, source_kafka: Mapping[str, str] | None, json_: bool) -> None:
    """Show the state of a query: its group, offsets, lag and open transactions.

    Only reads, so a running query is not affected. Exit status 1 if there is no such group. The lag
    of a mirrored query is known only with --source-bootstrap-servers.
    """
    with contextlib.ExitStack() as stack:
        wire = stack.enter_context(connected(query))
        source = None
        if source_kafka is not None:
            source = stack.enter_context(contextlib.closing(Wire(ClientSettings(source_kafka))))
        found = query_status(
            wire,
            query.client.bootstrap_servers,
            query.group_id,
            query.prefix,
            query.deadline(),
            source_wire=source,
        )
    if json_:
        click.echo(as_json(found))
    else:
        terminal().print(status_tables(found))
