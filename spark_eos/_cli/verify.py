"""``spark-eos verify``."""

import functools
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

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

from spark_eos._cli.findings import as_json, verify_tables
from spark_eos._cli.query import (
    NotKnownError,
    end_at,
    json_option,
    terminal,
    timeout_option,
    topics_option,
)
from spark_eos.errors import SparkEosError
from spark_eos.jobs.client_options import client_options, source_client_options
from spark_eos.verify import Comparison, Findings, Verdict, compare, verify
from spark_eos.verify.records import Watch
from spark_eos.verify.verifier import ISOLATION_LEVELS

# Options that say how outputs are matched with input.
_OF_INPUT: Final = {
    *("source_bootstrap_servers", "inputs", "dead_letter_topics", "position_header", "header"),
    *("expect_header", "isolation_level", "at_most_once_each", "complete"),
}


@click.command("verify")
@client_options
@source_client_options
@topics_option("--input", "inputs", "Input topic; repeatable.  [required without --expect]")
@topics_option("--output", "outputs", "Output topic; repeatable.", required=True)
@topics_option(
    "--dead-letter-topic",
    "dead_letter_topics",
    "Output topic that contains the query's dead letters; repeatable.",
)
@click.option(
    "--position-header",
    metavar="NAME",
    help="Match by this output header, which contains the source's topic:partition:offset.",
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
    help="Input header that contains the number of outputs.  [default: 1 output each]",
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
    help="An input may have no output, as with a filter, but not two. With --expect-header, the "
    "header's number is the maximum.",
)
@click.option("--complete", is_flag=True, help="Count unprocessed input as an anomaly.")
@timeout_option(30, "How long to wait for open transactions, and for each answer.")
@click.option(
    "--examples",
    type=click.IntRange(0, 1_000_000),
    default=5,
    show_default=True,
    metavar="N",
    help="Maximum number of examples of each anomaly.",
)
@json_option
def verify_command(
    *, inputs: tuple[str, ...], expect: str | None, json_: bool, **given: Any
) -> None:
    """Check, from input and output topics alone, that each record was written exactly once.

    Finds lost writes, duplicates, outputs without input, aborted and dirty reads, output out of
    order, and transactions that are torn or still open. Changes nothing, and works even while the
    query runs. Compacted topics can't be judged.

    For queries that aggregate, join or sort, --expect compares the outputs with rows that you have
    computed.

    Exit status: 0 sound, 1 anomalies found, 2 can't be judged.
    """
    end_at(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    call: Callable[..., Findings | Comparison]
    if expect is not None:
        _refuse_with_expect()
        ours = inspect.signature(compare).parameters
        given = {name: value for name, value in given.items() if name in ours}
        call = functools.partial(compare, expect=expect)
    elif inputs:
        call = functools.partial(verify, inputs=inputs)
    else:
        raise click.UsageError("Missing option '--input'.")
    try:
        with _progress() as watch:
            result = call(watch=watch, **given)
        _print(result, json_=json_)
    except (KeyboardInterrupt, SystemError) as error:
        # A signal within a C function of confluent-kafka arrives as the cause of a SystemError.
        if not any(isinstance(cause, KeyboardInterrupt) for cause in (error, error.__cause__)):
            raise
        click.echo("Stopped.", err=True)
        raise SystemExit(130) from None
    except SparkEosError as error:
        raise NotKnownError(str(error)) from error
    except Exception:  # noqa: BLE001 - Python's own exit status, 1, would mean anomalies
        traceback.print_exc()
        raise SystemExit(int(Verdict.UNJUDGED)) from None
    raise SystemExit(int(result.verdict))


def _print(result: Findings | Comparison, *, json_: bool) -> None:
    """Print the result; if its reader has gone, the exit status still tells the verdict."""
    try:
        if json_:
            click.echo(as_json(result))
        else:
            terminal().print(verify_tables(result))
    except BrokenPipeError:
        # What is still buffered would fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse_with_expect() -> None:
    context = click.get_current_context()
    for parameter in context.command.params:
        nothing = (None, (), parameter.get_default(context))
        if parameter.name in _OF_INPUT and context.params[parameter.name] not in nothing:
            raise click.UsageError(
                f"{parameter.opts[0]} says how outputs are matched with input, so it can't be used "
                "with --expect."
            )


@contextmanager
def _progress() -> Iterator[Watch]:
    """Show progress bars on stderr, if that is a terminal."""
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
