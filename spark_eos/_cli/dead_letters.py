"""``spark-eos dead-letters``."""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Any, Final

import click

from spark_eos._admin.dead_letter_replay import DeadLetterReplay, Replay
from spark_eos._admin.dead_letter_topic import DeadLetter, DeadLetterTopic
from spark_eos._admin.replay_progress import PartitionProgress, replayed
from spark_eos._cli.query import Cluster, check_reached, cluster_options, moment, terminal
from spark_eos._client.checks import check_text
from spark_eos._client.printable import counted, printable
from spark_eos._client.tables import FittingTable
from spark_eos.errors import AuthorizationError
from spark_eos.jobs.client_options import decorated

# Lists of topics end after so many.
_SHOWN: Final = 20
_UNREADABLE: Final = "headers: can't be read, since a name is not UTF-8"
_TOPIC: Final = click.option(
    "--topic", required=True, metavar="TOPIC", help="The dead-letter topic."
)
_FILTERS: Final = (
    click.option("--reason", metavar="REASON", help="Only letters with this reason."),
    click.option("--group-id", metavar="GROUP", help="Only letters of this group's query."),
)


def _topic_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that name a dead-letter topic, which the command receives as ``topic``."""

    @functools.wraps(command)
    def with_topic(*, cluster: Cluster, topic: str, **rest: Any) -> None:
        check_text("--topic", topic)
        check_reached(cluster)
        command(topic=DeadLetterTopic(cluster.client, topic, cluster.timeout), **rest)

    return cluster_options(decorated(with_topic, [_TOPIC]))


@click.group("dead-letters")
def dead_letters() -> None:
    """List, count, show and replay the records of a dead-letter topic."""


@dead_letters.command("list")
@_topic_options
@functools.partial(decorated, options=_FILTERS)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    metavar="N",
    help="Maximum number of letters.",
)
def list_(*, topic: DeadLetterTopic, reason: str | None, group_id: str | None, limit: int) -> None:
    """List dead letters with their reasons and source positions, without their values.

    "-" means that the time of writing is unknown, as in letters of earlier versions.
    """
    found = (letter for letter in topic.read() if _matches(letter, reason, group_id))
    table = FittingTable("letter", "written", "reason", "source", "error")
    for letter in islice(found, limit):
        table.add(
            f"{letter.partition}:{letter.offset}",
            "-" if letter.written is None else _time(letter.written),
            printable(letter.reason),
            printable(_source(letter)),
            _UNREADABLE
            if letter.headers is None
            else printable(letter.error_headers.get("message", "")),
        )
    terminal().print(table)


@dead_letters.command()
@_topic_options
@functools.partial(decorated, options=_FILTERS)
def count(*, topic: DeadLetterTopic, reason: str | None, group_id: str | None) -> None:
    """Count dead letters by group, reason and exception, and those left to replay."""
    found: Counter[tuple[str, str, str]] = Counter()
    left: Counter[tuple[str, str, str]] = Counter()
    unknown: set[int] = set()
    progress, hidden = _replayed(topic)
    for letter in topic.read():
        if _matches(letter, reason, group_id):
            told = letter.error_headers
            key = told.get("group", "-"), letter.reason, told.get("exception", "-")
            found[key] += 1
            if letter.partition not in progress:
                unknown.add(letter.partition)
            elif not progress[letter.partition].due(letter.offset):
                continue
            left[key] += 1
    table = FittingTable("letters>", "to replay>", "group", "reason", "exception")
    for texts, number in found.most_common():
        to_replay = "?" if hidden else f"{left[texts]:,}"
        table.add(f"{number:,}", to_replay, *map(printable, texts))
    terminal().print(table)
    click.echo(f"{counted(found.total(), 'dead letter')}. {hidden or _left(left, unknown)}")


def _replayed(topic: DeadLetterTopic) -> tuple[dict[int, PartitionProgress], str]:
    """How far the topic was replayed; or why that is not known."""
    try:
        return replayed(topic), ""
    except AuthorizationError as error:
        return {}, f"How many are left to replay is not known: {error!s}"


def _left(left: Counter[tuple[str, str, str]], unknown: Collection[int]) -> str:
    text = f"{left.total():,} left to replay."
    if unknown:
        text += (
            f" {counted(len(unknown), 'partition')} with letters: never replayed, or so long ago "
            "that the offsets have expired (offsets.retention.minutes)."
        )
    return text


@dead_letters.command()
@_topic_options
@click.option("--partition", type=click.IntRange(min=0), required=True, help="Its partition.")
@click.option("--offset", type=click.IntRange(min=0), required=True, help="Its offset.")
def show(*, topic: DeadLetterTopic, partition: int, offset: int) -> None:
    """Show one dead letter with its headers, key and value."""
    letter = topic.letter(partition, offset)
    if letter is None:
        raise click.ClickException(f"there is no committed record at {partition}:{offset}")
    if letter.headers is None:
        click.echo(_UNREADABLE)
    for name, content in letter.headers or ():
        click.echo(f"{printable(name)}: {_text(content)}")
    click.echo(f"key: {_text(letter.key)}")
    click.echo(f"value: {_text(letter.value)}")


@dead_letters.command()
@_topic_options
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="TOPIC",
    help="Replay letters of this source topic only, and to it; repeatable.  [default: ask]",
)
@click.option(
    "--to", "target", metavar="TOPIC", help="Topic to write to.  [default: the letter's source]"
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Maximum number of letters.")
@click.option(
    "--skip-omitted",
    is_flag=True,
    help="Pass over letters without their record's value or headers. By default the replay "
    "ends before one that says so, and leaves one whose headers can't be read.",
)
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Begin at the first letter of partitions without a known progress: for the first replay. "
    "By default these are refused.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be done, without doing it.")
def replay(
    *,
    topic: DeadLetterTopic,
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

    Begins after the last replayed letter, and ends with the letters that are there now. The headers
    that explain a dead letter are left out. The offsets of the group spark-eos-replay-TOPIC are the
    progress. Before the first replay there are none, and brokers drop them after
    offsets.retention.minutes (seven days by default): then --from-beginning is needed.
    """
    replaying = functools.partial(
        DeadLetterReplay,
        topic,
        target,
        limit=limit,
        skip_omitted=skip_omitted,
        from_beginning=from_beginning,
    )
    chosen: Collection[str] | None = sources or None
    if chosen is None and target is None and not dry_run:
        chosen = _agreed(replaying().run(dry_run=True))
    done = replaying(sources=chosen).run(dry_run=dry_run)
    click.echo(_outcome(done, dry_run=dry_run))


def _agreed(planned: Replay) -> Collection[str]:
    """The topics that letters would go to, if the user agrees to all of them."""
    topics = sorted(planned.written)
    if not topics:
        return topics
    headline = f"Letters of this topic would go to {counted(len(topics), 'topic')}:"
    found = "\n".join([headline, *_lines(planned.written)])
    if not sys.stdin.isatty():
        options = " ".join(f"--source {topic}" for topic in topics[:_SHOWN])
        raise click.ClickException(
            f"{found}\nNothing is written, since nobody can be asked. Name the topics to write to: "
            f"{options}"
        )
    click.echo(found)
    click.confirm("Write them?", abort=True)
    return topics


def _outcome(done: Replay, *, dry_run: bool) -> str:
    verb = "Would replay" if dry_run else "Replayed"
    shown = sorted(done.written.most_common(_SHOWN))
    where = ", ".join(f"{number:,} to {topic}" for topic, number in shown)
    texts = [f"{verb} {counted(done.total, 'dead letter')}{f': {where}' if where else ''}."]
    if done.omitted:
        texts.append(f"Passed over {done.omitted} without a value or headers.")
    if done.timestamps_moved:
        moved = counted(done.timestamps_moved, "record")
        texts.append(f"{moved} of 1970-01-01T00:00:00Z, with a timestamp 1 ms later.")
    left = done.others.total() + done.left.total() + done.unreadable
    lines = []
    if left:
        texts.append(f"Left {left:,} for a later replay:")
        whys = Counter({f"that {why} (--to TOPIC)": n for why, n in done.left.items()})
        others = Counter({f"of {name} (--source {name})": n for name, n in done.others.items()})
        unreadable = "whose headers can't be read (--skip-omitted to pass over them)"
        lines = _lines(Counter({unreadable: done.unreadable}) + whys) + _lines(others)
    return "\n".join([" ".join(texts), *lines])


def _lines(numbers: Counter[str]) -> list[str]:
    """A line for each of the largest numbers."""
    lines = [f"  {number:,} {what}" for what, number in numbers.most_common(_SHOWN)]
    more = len(numbers) - _SHOWN
    return [*lines, f"  and {more:,} more"] if more > 0 else lines


def _matches(letter: DeadLetter, reason: str | None, group_id: str | None) -> bool:
    return reason in (None, letter.reason) and group_id in (None, letter.error_headers.get("group"))


def _source(letter: DeadLetter) -> str:
    names = ("topic", "partition", "offset")
    return (
        ":".join(letter.error_headers[name] for name in names if name in letter.error_headers)
        or "-"
    )


def _time(milliseconds: int) -> str:
    when = moment(milliseconds)
    if when is None:
        return f"{milliseconds} ms"
    return when.isoformat(" ", "seconds").partition("+")[0]


def _text(content: bytes | None) -> str:
    if content is None:
        return "null"
    try:
        return printable(content.decode())
    except UnicodeDecodeError:
        return content.hex()
