"""``spark-eos status``."""

import click

from spark_eos.admin.status import query_status
from spark_eos.cli.query import Query, connected, query_options, terminal
from spark_eos.cli.status_document import as_json
from spark_eos.cli.status_tables import status_tables


@click.command()
@query_options
@click.option("--json", "json_", is_flag=True, help="Print one JSON document.")
def status(*, query: Query, json_: bool) -> None:
    """Show the state of a query: its group, offsets, lag and open transactions.

    Only reads, so a running query is not affected. Exit status 1 if there is no such group.
    """
    with connected(query) as wire:
        found = query_status(
            wire, query.client.bootstrap_servers, query.group_id, query.prefix, query.deadline()
        )
    if json_:
        click.echo(as_json(found))
    else:
        terminal().print(status_tables(found))
