"""``spark-eos topics``."""

import json
from contextlib import closing
from dataclasses import asdict

import click

from spark_eos._admin.fitting_table import FittingTable
from spark_eos._admin.topics import topic_summaries
from spark_eos._cli.query import cluster_options, terminal
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline


@click.command()
@cluster_options
@click.option("--json", "json_", is_flag=True, help="Print one JSON document.")
def topics(*, client: ClientSettings, timeout: float, json_: bool) -> None:
    """List the topics of a cluster, with their partitions and how much is in them.

    Transactions take offsets for their markers, so there may be fewer records than offsets.
    """
    with closing(Connections(client, request_timeout=min(10.0, timeout))) as connections:
        found = topic_summaries(connections, Deadline(timeout, "--timeout"))
    if json_:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    table = FittingTable("topic", "partitions>", "replicas>", "offsets>")
    for one in found:
        offsets = "unknown" if one.offsets is None else f"{one.offsets:,}"
        table.add(one.name, str(one.partitions), str(one.replicas), offsets)
    terminal().print(table)
