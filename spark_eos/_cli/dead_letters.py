"""``spark-eos dead-letters``: lists, counts and shows dead letters, and prints replay commands."""

import functools
import shlex
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from spark_eos._cli.query import Cluster, check_reached, cluster_options, moment, terminal
from spark_eos._client.checks import check_topic
from spark_eos._client.header_values import MAX_OFFSET, MAX_PARTITION
from spark_eos._client.printable import counted, printable
from spark_eos._client.tables import FittingTable
from spark_eos._kafka.dead_letter_topic import DeadLetter, DeadLetterTopic

_UNREADABLE: Final = "headers: can't be read, since a name is not UTF-8"
# Maximum number of source topics for which replay commands are printed.
_SHOWN: Final = 20
# In a wheel, the job is inside the package; in a clone, it is next to the other jobs.
_JOB: Final = Path("jobs", "replay_dead_letters.py")
_PACKAGED_JOB: Final = Path(__file__).parent.parent / _JOB
_topic: Final = click.option(
    "--topic", required=True, metavar="TOPIC", help="The dead-letter topic."
)
_reason: Final = click.option(
    "--reason", metavar="REASON", help="Only dead letters with this reason."
)
_group: Final = click.option(
    "--group-id", metavar="GROUP", help="Only dead letters of this group's query."
)


def _dead_letter_topic(cluster: Cluster, name: str) -> DeadLetterTopic:
    """Return the dead-letter topic that ``--topic`` names."""
    check_topic("--topic", name)
    check_reached(cluster)
    return DeadLetterTopic(cluster.client, name, cluster.timeout)


def _topic_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name a dead-letter topic, which the command receives as ``topic``."""

    @functools.wraps(command)
    def with_topic(*, cluster: Cluster, topic: str, **rest: Any) -> None:
        command(topic=_dead_letter_topic(cluster, topic), **rest)

    return cluster_options(_topic(with_topic))


@click.group("dead-letters")
def dead_letters() -> None:
    """List, count and show the records of a dead-letter topic."""


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
    help="Maximum number of dead letters.",
)
def list_(*, topic: DeadLetterTopic, reason: str | None, group_id: str | None, limit: int) -> None:
    """List dead letters with their reasons and source positions, without their values.

    "-" means that the time of writing is unknown, as for dead letters from earlier versions.
    """
    matching = (each for each in topic.read() if _matches(each, reason, group_id))
    table = FittingTable("dead letter", "written (UTC)", "reason", "source", "error")
    for dead_letter in islice(matching, limit):
        table.add(
            f"{dead_letter.partition}:{dead_letter.offset}",
            "-" if dead_letter.written is None else _time(dead_letter.written),
            printable(dead_letter.reason),
            printable(_source(dead_letter)),
            _UNREADABLE
            if dead_letter.headers is None
            else printable(dead_letter.error_headers.get("message", "")),
        )
    terminal().print(table)


@dead_letters.command()
@cluster_options
@_topic
@_reason
@_group
def count(*, cluster: Cluster, topic: str, reason: str | None, group_id: str | None) -> None:
    """Count dead letters by source topic, group, reason and exception.

    Also prints a replay command for each source topic.
    """
    counts: Counter[tuple[str, str, str, str]] = Counter()
    homes: Counter[str | None] = Counter()
    incomplete = 0
    for dead_letter in _dead_letter_topic(cluster, topic).read():
        if not _matches(dead_letter, reason, group_id):
            continue
        headers = dead_letter.error_headers
        group, exception = headers.get("group", "-"), headers.get("exception", "-")
        counts[dead_letter.home or "-", group, dead_letter.reason, exception] += 1
        homes[dead_letter.home] += 1
        incomplete += dead_letter.incomplete is not None
    table = FittingTable("dead letters>", "source", "group", "reason", "exception")
    for texts, number in counts.most_common():
        table.add(number, *texts)
    terminal().print(table)
    elsewhere = homes.pop(None, 0)
    click.echo(f"{counted(homes.total() + elsewhere, 'dead letter')}.")
    for home, number in homes.most_common(_SHOWN):
        command = _replay_command(cluster, topic, str(home), reason, group_id)
        amount = counted(number, "dead letter")
        click.echo(f"\nReplay the {amount} of {home} exactly once:\n\n{command}")
    notes = (
        (len(homes) - _SHOWN, "more source topics: name each as --target"),
        (elsewhere, "without a source topic in this cluster: give --all and another --target"),
        (incomplete, "without their complete record: exclude them with --where"),
    )
    if shown := [f"  {number:,} {text}" for number, text in notes if number > 0]:
        click.echo("\n".join(("", "Not replayed by these commands:", *shown)))


def _replay_command(
    cluster: Cluster, topic: str, source: str, reason: str | None, group_id: str | None
) -> str:
    """Return a command that replays a source topic's dead letters; it is the same on every call."""
    chosen = {"reason": reason, "group": group_id}
    conditions = (
        f"dead_letter.{name} = {_sql(text)}" for name, text in chosen.items() if text is not None
    )
    where = " and ".join(conditions)
    # A replay continues from its group's offsets, so each selection needs a group of its own.
    digest = sha256(repr((topic, source, where)).encode()).hexdigest()[:8]
    group = f"replay-{source[:100]}-{digest}"
    lines: list[tuple[str, ...]] = [
        (str(_PACKAGED_JOB if _PACKAGED_JOB.is_file() else _JOB),),
        ("--bootstrap-servers", str(cluster.kafka["bootstrap.servers"]), "--group-id", group),
        ("--source", topic, "--target", source),
        ("--checkpoint-location", f"checkpoints/{group}"),
    ]
    if len(cluster.kafka) > 1:
        # Don't print the settings: they may be secret.
        lines.append(("--kafka-config", "FILE"))
    if where:
        lines.append(("--where", where))
    return " \\\n    ".join(('spark-submit --jars "$(spark-eos jars)"', *map(shlex.join, lines)))


def _sql(text: str) -> str:
    escaped = text.replace("\\", r"\\").replace("'", r"\'")
    return f"'{escaped}'"


@dead_letters.command()
@_topic_options
@click.option(
    "--partition",
    type=click.IntRange(0, MAX_PARTITION),
    required=True,
    help="The dead letter's partition.",
)
@click.option(
    "--offset",
    type=click.IntRange(0, MAX_OFFSET),
    required=True,
    help="The dead letter's offset.",
)
def show(*, topic: DeadLetterTopic, partition: int, offset: int) -> None:
    """Show one dead letter with its headers, key and value."""
    dead_letter = topic.letter(partition, offset)
    if dead_letter is None:
        raise click.ClickException(f"there is no committed record at {partition}:{offset}")
    if dead_letter.headers is None:
        click.echo(_UNREADABLE)
    for name, content in dead_letter.headers or ():
        click.echo(f"{printable(name)}: {_text(content)}")
    click.echo(f"key: {_text(dead_letter.key)}")
    click.echo(f"value: {_text(dead_letter.value)}")


def _matches(dead_letter: DeadLetter, reason: str | None, group_id: str | None) -> bool:
    group = dead_letter.error_headers.get("group")
    return reason in (None, dead_letter.reason) and group_id in (None, group)


def _source(dead_letter: DeadLetter) -> str:
    names = ("topic", "partition", "offset")
    headers = dead_letter.error_headers
    return ":".join(headers[name] for name in names if name in headers) or "-"


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
