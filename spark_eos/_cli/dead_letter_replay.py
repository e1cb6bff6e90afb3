"""``spark-eos dead-letters replay``."""

import functools
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import click

from spark_eos._admin.dead_letter_topic import DeadLetterTopic
from spark_eos._admin.replay_plan import ReplayPlan, ReplayProgress, replay_progress
from spark_eos._cli.query import Cluster, check_reached, cluster_options, topics_option
from spark_eos._client.checks import check_text
from spark_eos._client.printable import counted
from spark_eos.errors import WriteError

TOPIC: Final = click.option(
    "--topic", required=True, metavar="TOPIC", help="The dead-letter topic."
)
# Lists of topics end after so many.
_SHOWN: Final = 20


def topic_of(cluster: Cluster, name: str) -> DeadLetterTopic:
    """The dead-letter topic that ``--topic`` names."""
    check_text("--topic", name)
    check_reached(cluster)
    return DeadLetterTopic(cluster.client, name, cluster.timeout)


@click.command()
@cluster_options
@TOPIC
@topics_option(
    "--source",
    "sources",
    "Replay letters of this source topic only, and to it; repeatable.  [default: ask]",
)
@click.option(
    "--to", "target", metavar="TOPIC", help="Topic to write to.  [default: the letter's source]"
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Maximum number of letters.")
@click.option(
    "--skip-omitted",
    is_flag=True,
    help="Pass over letters without their record's value or headers. By default the replay "
    "ends before the first one.",
)
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Begin at the first letter where it is not known how far the letters were replayed: for "
    "the first replay of each source topic. By default this is refused.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be done, without doing it.")
def replay(
    *,
    cluster: Cluster,
    topic: str,
    sources: Sequence[str],
    target: str | None,
    limit: int | None,
    skip_omitted: bool,
    from_beginning: bool,
    dry_run: bool,
) -> None:
    """Write dead letters to their source topics, or another one, exactly once.

    Letters go only to the topics that --source or --to names, or, without both, to those that you
    agree to: their headers name the source, and anyone who may write to the dead-letter topic can
    make them up. Other letters are left for a later replay.

    Runs a query on a local Spark for each source topic, from after its last replayed letter to the
    letters that are there now: it needs spark-eos[spark] and Java. The headers that explain a dead
    letter are left out. The offsets of the group spark-eos-replay-TOPIC/SOURCE are the progress,
    and those of spark-eos-replay-TOPIC for letters without a source topic in this cluster. Before
    the first replay there are none, and brokers drop them after offsets.retention.minutes (seven
    days by default): then --from-beginning is needed.
    """
    letters = topic_of(cluster, topic)
    plan = ReplayPlan(
        sources=sources,
        homeless=target is not None,
        limit=limit,
        skip_omitted=skip_omitted,
        from_beginning=from_beginning,
    )
    with replay_progress(letters) as progress:
        plan.read(letters, progress)
        if not dry_run and target is None and not sources:
            _agree(plan)
        written = plan.letters if dry_run else _write(cluster, topic, plan, progress, target)
    verb = "Would replay" if dry_run else "Replayed"
    click.echo("\n".join(_outcome(plan, written, target, verb)))
    if plan.stopped:
        raise WriteError(plan.stopped)


def _agree(plan: ReplayPlan) -> None:
    """Asks the user whether letters may go to the topics that they name."""
    topics = sorted(plan.letters)
    if not topics:
        return
    headline = f"Letters of this topic would go to {counted(len(topics), 'topic')}:"
    found = "\n".join([headline, *_lines(plan.letters)])
    if len(topics) > _SHOWN:
        raise click.ClickException(
            f"{found}\nNothing is written, since so many can't be agreed to at once. Name the "
            "topics to write to (--source)"
        )
    if not sys.stdin.isatty():
        options = " ".join(f"--source {topic}" for topic in topics[:_SHOWN])
        raise click.ClickException(
            f"{found}\nNothing is written, since nobody can be asked. Name the topics to write to: "
            f"{options}"
        )
    click.echo(found)
    click.confirm("Write them?", abort=True)


def _write(
    cluster: Cluster, topic: str, plan: ReplayPlan, progress: ReplayProgress, target: str | None
) -> Counter[str]:
    """Replays the letters of each home; returns how many were written."""
    written: Counter[str] = Counter()
    targets = [target] if target is not None else {*plan.sources, *plan.homes}
    partitions = progress.partitions_of(targets)
    progress.renew_others(plan.homes)
    if not plan.homes:
        return written
    try:
        from spark_eos._spark import dead_letter_replay  # noqa: PLC0415 - needs pyspark
        from spark_eos.jobs.running import run  # noqa: PLC0415
    except ImportError as error:
        raise click.ClickException(
            f"a replay runs on a local Spark, and this Python has no module {error.name!r}: "
            "install spark-eos[spark]"
        ) from error
    # What a query says when it starts is of no use here.
    logging.getLogger("spark_eos").setLevel(logging.WARNING)
    with dead_letter_replay.local_spark() as spark:
        for home in plan.homes:
            to = target or home
            written[home] = dead_letter_replay.replay(
                spark,
                cluster.kafka,
                cluster.timeout,
                topic,
                home,
                functools.partial(plan.ends_after, progress, home),
                to,
                partitions[to],
                run,
            )
    return written


def _outcome(
    plan: ReplayPlan, written: Counter[str], target: str | None, verb: str
) -> Iterator[str]:
    total = written.total()
    to = +written if target is None else +Counter({target: total})
    where = ", ".join(f"{number:,} to {name}" for name, number in sorted(to.most_common(_SHOWN)))
    gone = plan.letters.total() - total
    text = f"{verb} {counted(total, 'dead letter')}{f': {where}' if where else ''}."
    if gone > 0:
        text += (
            f" {gone:,} that were there at first are not written: deleted by retention or "
            "compaction, or replayed by another command meanwhile."
        )
    if plan.omitted:
        text += f" Passed over {plan.omitted.total()} without a value or headers."
    left = Counter({f"of {name} (--source {name})": n for name, n in plan.left.items() if name})
    left["without a source topic here (--to TOPIC)"] = plan.left[""]
    left["whose headers can't be read, which are never replayed"] = plan.never
    yield text + (f" Left {left.total():,}:" if left.total() else "")
    yield from _lines(+left)


def _lines(numbers: Counter[str]) -> list[str]:
    """A line for each of the largest numbers."""
    lines = [f"  {number:,} {what}" for what, number in numbers.most_common(_SHOWN)]
    more = len(numbers) - _SHOWN
    return [*lines, f"  and {more:,} more"] if more > 0 else lines
