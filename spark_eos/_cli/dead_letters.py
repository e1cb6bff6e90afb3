"""``spark-eos dead-letters``."""

import functools
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import click

from spark_eos._admin.dead_letter_topic import DeadLetter, DeadLetterTopic
from spark_eos._admin.replay_plan import replay_progress
from spark_eos._cli.dead_letter_replay import TOPIC, replay, topic_of
from spark_eos._cli.query import Cluster, cluster_options, moment, terminal
from spark_eos._client.printable import counted, printable
from spark_eos._client.tables import FittingTable
from spark_eos.errors import AuthorizationError, FormatVersionError

_UNREADABLE: Final = "headers: can't be read, since a name is not UTF-8"
_reason: Final = click.option("--reason", metavar="REASON", help="Only letters with this reason.")
_group: Final = click.option(
    "--group-id", metavar="GROUP", help="Only letters of this group's query."
)


def _topic_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that name a dead-letter topic, which the command receives as ``topic``."""

    @functools.wraps(command)
    def with_topic(*, cluster: Cluster, topic: str, **rest: Any) -> None:
        command(topic=topic_of(cluster, topic), **rest)

    return cluster_options(TOPIC(with_topic))


@click.group("dead-letters")
def dead_letters() -> None:
    """List, count, show and replay the records of a dead-letter topic."""


@dead_letters.command("list")
@_topic_options
@_reason
@_group
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
@_reason
@_group
def count(*, topic: DeadLetterTopic, reason: str | None, group_id: str | None) -> None:
    """Count dead letters by group, reason and exception, and those left to replay."""
    found: Counter[tuple[str, str, str]] = Counter()
    left: Counter[tuple[str, str, str]] = Counter()
    unknown, hidden = 0, ""
    with replay_progress(topic) as progress:
        for letter in topic.read():
            if not _matches(letter, reason, group_id):
                continue
            told, home = letter.error_headers, letter.home
            key = told.get("group", "-"), letter.reason, told.get("exception", "-")
            found[key] += 1
            if home is None or hidden:
                continue
            try:
                left[key] += progress.due(home, letter)
                unknown += not progress.knows(home, letter)
            except (AuthorizationError, FormatVersionError) as error:
                hidden = f"How many are left to replay is not known: {error!s}"
    table = FittingTable("letters>", "to replay>", "group", "reason", "exception")
    for texts, number in found.most_common():
        to_replay = "?" if hidden else f"{left[texts]:,}"
        table.add(f"{number:,}", to_replay, *map(printable, texts))
    terminal().print(table)
    text = f"{left.total():,} left to replay."
    if unknown:
        text += (
            f" Of these, {unknown:,} may have been replayed so long ago that the offsets have "
            "expired (offsets.retention.minutes), if they were ever."
        )
    click.echo(f"{counted(found.total(), 'dead letter')}. {hidden or text}")


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


dead_letters.add_command(replay)


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
