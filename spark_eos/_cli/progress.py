"""``spark-eos progress``."""

import contextlib
import re
from collections.abc import Mapping

import click

from spark_eos._cli.mirrored_progress import set_progress
from spark_eos._cli.query import Query, connected, query_options, terminal
from spark_eos._client.header_values import MAX_OFFSET, MAX_PARTITION
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._status.group_progress import mirrored_progress
from spark_eos._status.tables import progress_table
from spark_eos.jobs.client_options import source_client_options

_WANTED = re.compile(r"([A-Za-z0-9._-]+):([0-9]{1,10})=([0-9]{1,19})")


def _wanted(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for text in values:
        parts = _WANTED.fullmatch(text)
        if parts is None:
            raise click.BadParameter(f"{text!r} is not of the form topic:partition=offset")
        partition, offset = TopicPartition(parts[1], int(parts[2])), int(parts[3])
        if partition.partition > MAX_PARTITION or offset > MAX_OFFSET:
            raise click.BadParameter(f"{text!r} has a number that Kafka can't represent")
        if partition in offsets:
            raise click.BadParameter(f"{parts[1]}:{parts[2]} is given twice")
        offsets[partition] = offset
    return offsets


@click.command()
@query_options
@source_client_options
@click.option(
    "--set",
    "wanted",
    multiple=True,
    callback=_wanted,
    metavar="TOPIC:PARTITION=OFFSET",
    help="Set the next offset to read from a source partition; repeatable.",
)
@click.option(
    "--progress-topic",
    metavar="TOPIC",
    help="The progress topic; --set needs it if the group has no progress.",
)
@click.option("--dry-run", is_flag=True, help="Print what --set would do, without doing it.")
def progress(
    *,
    query: Query,
    source_kafka: Mapping[str, str] | None,
    wanted: dict[TopicPartition, int],
    progress_topic: str | None,
    dry_run: bool,
) -> None:
    """Show or set how far a mirrored query has read each source partition.

    Stop the query before --set, and start it with an empty checkpoint afterwards. Records before
    the offset are skipped. Records from the offset on are written, even if they have been written
    before. --bootstrap-servers is the target's cluster; --source-bootstrap-servers is needed only
    for partitions without progress.
    """
    with contextlib.ExitStack() as stack:
        connections = stack.enter_context(connected(query))
        if not wanted:
            pairs = mirrored_progress(connections, query.group_id, query.deadline())
            terminal().print(progress_table(pairs))
            return
        source = None
        if (source_client := ClientSettings.of_source(source_kafka)) is not None:
            source = stack.enter_context(contextlib.closing(Connections(source_client)))
        before = set_progress(
            connections,
            query.group_id,
            wanted,
            query.deadline(),
            source_connections=source,
            progress_topic=progress_topic,
            dry_run=dry_run,
        )
    for partition, offset in sorted(wanted.items()):
        was = before[partition]
        verb = "would be" if dry_run else "is"
        click.echo(f"{partition}: was {'unset' if was is None else was}, {verb} {offset}")
