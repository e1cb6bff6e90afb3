"""``spark-eos topics``."""

import json
from dataclasses import asdict

import click

from spark_eos._admin.fitting_table import FittingTable
from spark_eos._admin.topics import topic_summaries
from spark_eos._cli.query import Cluster, cluster_options, connected, terminal


@click.command()
@cluster_options
@click.option("--json", "json_", is_flag=True, help="Print one JSON document.")
def topics(*, cluster: Cluster, json_: bool) -> None:
    """List the topics of a cluster, with their partitions and how much is in them.

    Transactions' markers take offsets, too, so there may be fewer records than offsets.
    """
    with connected(cluster) as connections:
        found = topic_summaries(connections, cluster.deadline())
    if json_:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    table = FittingTable("topic", "partitions>", "replicas>", "offsets>")
    for one in found:
        offsets = "unknown" if one.offsets is None else f"{one.offsets:,}"
        table.add(one.name, str(one.partitions), str(one.replicas), offsets)
    terminal().print(table)
