"""``spark-eos topics``."""

import json
from collections.abc import Mapping
from typing import Any, Final

import click

from spark_eos._cli.query import Cluster, cluster_options, connected, json_option, terminal
from spark_eos._client.header_values import topic_name
from spark_eos._client.tables import FittingTable
from spark_eos._kafka.cluster import metadata_request
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.list_offsets import end_offsets, start_offsets
from spark_eos._kafka.topic_creation import await_topic, create_topic
from spark_eos.acls import Operation

METAVAR: Final = "NAME[:PARTITIONS]"
_MOST: Final = 1_000


def new_topics(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, int]:
    """Parse an option's values; return the number of partitions by topic name."""
    topics: dict[str, int] = {}
    for text in values:
        name, colon, number = text.partition(":")
        if topic_name(name) is None:
            raise click.BadParameter(
                f"{name!r} is not a valid topic name: use at most 249 letters, digits, '.', '_' "
                "and '-'"
            )
        if name in topics:
            raise click.BadParameter(f"{name!r} is given twice")
        if colon and not (number.isascii() and number.isdigit() and 1 <= int(number) <= _MOST):
            raise click.BadParameter(f"{text!r} is not NAME or NAME:PARTITIONS, from 1 to {_MOST}")
        topics[name] = int(number or 1)
    return topics


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
    """List the topics of a cluster, with their partitions, replicas and offsets.

    Transaction markers take offsets as well, so there may be fewer records than offsets.
    """
    with connected(cluster) as connections:
        for name, partitions in created.items():
            if not create_topic(connections, name, partitions, None, cluster.deadline()):
                click.echo(f"{name} already exists and stays unchanged", err=True)
            await_topic(connections, name, cluster.deadline(), Operation.DESCRIBE)
        metadata = _topics(connections, cluster.deadline())
    if json_:
        click.echo(json.dumps(metadata, indent=2))
        return
    rows = ([*row.values()] for row in metadata)
    terminal().print(FittingTable("topic", "partitions>", "replicas>", "offsets>", rows=rows))


def _topics(connections: Connections, deadline: Deadline) -> list[dict[str, Any]]:
    """Return all topics that the client may describe, except Kafka's internal ones, by name."""
    metadata = connections.send(metadata_request(None), deadline).topics
    shown = {
        topic.name: topic.partitions
        for topic in metadata
        if not topic.is_internal and topic.partitions
    }
    starts = start_offsets(connections, shown, deadline)
    lengths = dict.fromkeys(shown, 0)
    unknown: set[str] = set()
    for partition, end in end_offsets(connections, shown, deadline).items():
        start = starts.get(partition)
        if end is None or start is None:
            unknown.add(partition.topic)
        else:
            lengths[partition.topic] += end.last_stable - start
    return [
        {
            "name": name,
            "partitions": len(partitions),
            # Number of replicas of the partition that has the fewest.
            "replicas": min(len(partition.replica_nodes) for partition in partitions),
            # Offsets that read_committed consumers can read; null if a partition has no leader.
            "offsets": None if name in unknown else lengths[name],
        }
        for name, partitions in sorted(shown.items())
    ]
