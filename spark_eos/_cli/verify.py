"""``spark-eos verify``."""

import functools
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from spark_eos._cli.query import end_at, json_option, terminal, timeout_option
from spark_eos._cli.verify_document import as_json
from spark_eos._cli.verify_tables import verify_tables
from spark_eos.errors import SparkEosError
from spark_eos.jobs.client_options import client_options, source_client_options
from spark_eos.verify import Comparison, Findings, compare, verify
from spark_eos.verify.records import Watch
from spark_eos.verify.verifier import ISOLATION_LEVELS


class _CannotJudgeError(click.ClickException):
    exit_code = 2


@click.command("verify")
@client_options
@source_client_options
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="TOPIC",
    help="Input topic; repeatable.  [required without --expect]",
)
@click.option(
    "--output",
    "outputs",
    multiple=True,
    required=True,
    metavar="TOPIC",
    help="Output topic; repeatable.",
)
@click.option(
    "--dead-letter-topic",
    "dead_letter_topics",
    multiple=True,
    metavar="TOPIC",
    help="Output topic that holds the query's dead letters; repeatable.",
)
@click.option(
    "--position-header",
    metavar="NAME",
    help="Match by this header of the output, which holds its source's topic:partition:offset.",
)
@click.option(
    "--header", metavar="NAME", help="Match by this header, the same in input and output."
)
@click.option(
    "--key",
    is_flag=True,
    help="Match by the key, the same in input and output. With --expect: compare only the last "
    "value of each key.",
)
@click.option(
    "--expect-header",
    metavar="NAME",
    help="Header of the input that holds its number of outputs.  [default: 1 output each]",
)
@click.option(
    "--expect",
    metavar="PATH",
    help="Compare the outputs with rows instead of the input: a Parquet file or directory (a path "
    "or URI; columns value, key, topic), or topic:NAME.",
)
@click.option(
    "--group-id",
    metavar="GROUP",
    help="The query's consumer group. Without it, all input counts as processed.",
)
@click.option(
    "--prefix",
    metavar="PREFIX",
    help="Also look for open transactions of transactional ids that begin with PREFIX.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(ISOLATION_LEVELS),
    default=ISOLATION_LEVELS[0],
    show_default=True,
    help="Isolation level at which to read the outputs.",
)
@click.option(
    "--at-most-once-each",
    is_flag=True,
    help="An input may have no output, as with a filter, but not two. With --expect-header: its "
    "number is the maximum.",
)
@click.option("--complete", is_flag=True, help="Count input not yet processed as an anomaly.")
@timeout_option(30, "How long to wait for open transactions, and for each answer.")
@click.option(
    "--examples",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    metavar="N",
    help="Maximum number of examples of each anomaly.",
)
@json_option
def verify_command(
    *,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    dead_letter_topics: tuple[str, ...],
    position_header: str | None,
    header: str | None,
    key: bool,
    expect_header: str | None,
    expect: str | None,
    group_id: str | None,
    prefix: str | None,
    isolation_level: str,
    at_most_once_each: bool,
    complete: bool,
    kafka: Mapping[str, str],
    source_kafka: Mapping[str, str] | None,
    timeout: float,
    examples: int,
    json_: bool,
) -> None:
    """Judge by input and output topics alone whether each record was written exactly once.

    Finds lost writes, duplicates, outputs without input, aborted and dirty reads, output out of
    order, and transactions that are torn or still open. Only reads, also while a query runs.
    Compacted topics can't be judged.

    For queries that aggregate, join or sort, --expect compares the outputs with rows that you have
    computed.

    Exit status: 0 sound, 1 anomalies found, 2 can't be judged.
    """
    end_at(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    call: Callable[..., Findings | Comparison]
    if expect is None:
        if not inputs:
            raise click.UsageError("Missing option '--input'.")
        call = functools.partial(
            verify,
            source_kafka=source_kafka,
            inputs=inputs,
            dead_letter_topics=dead_letter_topics,
            position_header=position_header,
            header=header,
            expect_header=expect_header,
            isolation_level=isolation_level,
            at_most_once_each=at_most_once_each,
            complete=complete,
        )
    else:
        _refuse_with_expect(
            {
                "--source-bootstrap-servers": source_kafka is not None,
                "--input": inputs,
                "--dead-letter-topic": dead_letter_topics,
                "--position-header": position_header is not None,
                "--header": header is not None,
                "--expect-header": expect_header is not None,
                "--isolation-level": isolation_level != ISOLATION_LEVELS[0],
                "--at-most-once-each": at_most_once_each,
                "--complete": complete,
            }
        )
        call = functools.partial(compare, expect=expect)
    try:
        with _progress() as watch:
            found = call(
                kafka=kafka,
                outputs=outputs,
                key=key,
                group_id=group_id,
                prefix=prefix,
                timeout=timeout,
                examples=examples,
                watch=watch,
            )
    except (KeyboardInterrupt, SystemError) as error:
        # A signal within a C function of confluent-kafka arrives as the cause of a SystemError.
        if not any(isinstance(one, KeyboardInterrupt) for one in (error, error.__cause__)):
            raise
        click.echo("Stopped.", err=True)
        raise SystemExit(130) from None
    except SparkEosError as error:
        raise _CannotJudgeError(str(error)) from error
    if json_:
        click.echo(as_json(found))
    else:
        terminal().print(verify_tables(found))
    raise SystemExit(int(found.verdict))


def _refuse_with_expect(given: Mapping[str, object]) -> None:
    for option, value in given.items():
        if value:
            raise click.UsageError(
                f"{option} says how outputs are matched with input, which --expect does not do."
            )


@contextmanager
def _progress() -> Iterator[Watch]:
    """Shows progress bars on stderr, if that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:
        tasks: dict[str, TaskID] = {}

        def watch(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what)
            progress.update(tasks[what], completed=done, total=total)

        yield watch
