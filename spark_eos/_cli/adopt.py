"""``spark-eos adopt``."""

import click

from spark_eos._checkpoint.files import ArrowFiles
from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._cli import migration
from spark_eos._cli.query import Query, connected, query_options
from spark_eos._client.printable import counted
from spark_eos._kafka.offset_metadata import KnownPartitions


@click.command()
@query_options
@click.option(
    "--checkpoint",
    required=True,
    metavar="PATH",
    help="Checkpoint of the query with Spark's own sink, or a copy of it.",
)
@click.option(
    "--repeat-unfinished",
    is_flag=True,
    help="If a batch was begun but not finished, write all of it again.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be done, without doing it.")
def adopt(*, query: Query, checkpoint: str, repeat_unfinished: bool, dry_run: bool) -> None:
    """Migrate a query from Spark's own Kafka sink to spark-eos.

    Sets the group's offsets to the point that the query has reached, according to the checkpoint.
    The query must be stopped, and the group must be new. The checkpoint is not changed.
    """
    finished = OffsetLog(ArrowFiles(checkpoint)).finished()
    migration.check_finished(finished, repeat_unfinished=repeat_unfinished)
    with connected(query) as connections:
        ids = migration.check_topics(connections, query.group_id, finished.ends, query.deadline())
        unset = migration.check_unused(
            connections, query.group_id, query.prefix, finished.ends, query.deadline()
        )
        for partition, offset in sorted(finished.ends.items()):
            click.echo(f"{partition}: {offset}")
        if unset and not dry_run:
            # With these texts, partitions that are added before the first start count as new.
            texts = KnownPartitions().including(finished.ends, ids).texts(finished.ends)
            migration.set_offsets(
                connections, query.group_id, finished.ends, ids, query.deadline(), texts
            )
    where = "the start" if finished.last is None else f"the end of batch {finished.last}"
    partitions = counted(len(finished.ends), "partition")
    if not unset:
        click.echo(f"Group {query.group_id} already has these offsets: {where}, {partitions}.")
    else:
        verb = "would continue" if dry_run else "continues"
        click.echo(f"Group {query.group_id} {verb} from {where}, in {partitions}.")
