"""``spark-eos topics``."""

import json
from collections.abc import Mapping
from dataclasses import asdict

import click

from spark_eos._admin.fitting_table import FittingTable
from spark_eos._admin.topics import topic_summaries
from spark_eos._cli.new_topics import METAVAR, new_topics
from spark_eos._cli.query import Cluster, cluster_options, connected, json_option, terminal
from spark_eos._kafka.topic_creation import create_topic


@click.command()
@cluster_options
@click.option(
    "--create",
    "created",
    multiple=True,
    callback=new_topics,
    metavar=METAVAR,
    help="Topic to create first, with 1 partition by default; repeatable.",
)
@json_option
def topics(*, cluster: Cluster, created: Mapping[str, int], json_: bool) -> None:
    """List the topics of a cluster, with their partitions and how much is in them.

    Transactions' markers take offsets, too, so there may be fewer records than offsets.
    """
    with connected(cluster) as connections:
        for name, partitions in created.items():
            if not create_topic(connections, name, partitions, None, cluster.deadline()):
                click.echo(f"{name} exists; it stays as it is", err=True)
        found = topic_summaries(connections, cluster.deadline())
    if json_:
        click.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    table = FittingTable("topic", "partitions>", "replicas>", "offsets>")
    for one in found:
        offsets = "unknown" if one.offsets is None else f"{one.offsets:,}"
        table.add(one.name, str(one.partitions), str(one.replicas), offsets)
    terminal().print(table)
