"""Command-line options of spark-submit jobs."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import click

from spark_eos.errors import ConfigurationError
from spark_eos.jobs.client_options import client_options, decorated, source_client_options
from spark_eos.options import FLAT, FlatOption, grouped, parse_limit

_INTERVAL: Final = re.compile(r"\d+ (millisecond|second|minute|hour|day)s?")


@dataclass(frozen=True)
class JobOptions:
    """The parsed command line of a spark-submit job.

    Attributes:
        kafka: Client settings for the sink, including ``bootstrap.servers``.
        group_id: Consumer group that holds the query's offsets.
        source: Topics to read, joined by commas.
        target: Topic to write to.
        checkpoint_location: The query's checkpoint.
        trigger: Keyword arguments for ``DataStreamWriter.trigger``.
        starting_offsets: ``earliest`` or ``latest``.
        source_options: Further options of Spark's Kafka source.
        log_format: ``text`` or ``json``.
        metrics_port: Port of the Prometheus metrics; None to serve none.
        metrics_address: Interface to serve the metrics on.
        source_kafka: Client settings for the cluster of the source topics; None if it is the same
            as the target's.
        sink: Further arguments of the sink that were given: ``transactions``, ``dead_letters`` and
            so on.

    Examples:
        >>> JobOptions(
        ...     kafka={"bootstrap.servers": "localhost:9092"},
        ...     group_id="relay",
        ...     source="orders",
        ...     target="orders-copy",
        ...     checkpoint_location="checkpoints/relay",
        ...     trigger={"availableNow": True},
        ...     starting_offsets="earliest",
        ...     source_options={"maxOffsetsPerTrigger": "10000"},
        ... ).log_format
        'text'
    """

    kafka: Mapping[str, str] = field(repr=False)
    group_id: str
    source: str
    target: str
    checkpoint_location: str
    trigger: Mapping[str, Any]
    starting_offsets: str
    source_options: Mapping[str, str]
    log_format: str = "text"
    metrics_port: int | None = None
    metrics_address: str = "127.0.0.1"
    source_kafka: Mapping[str, str] | None = field(default=None, repr=False)
    sink: Mapping[str, Any] = field(default_factory=dict)


# Fields whose values are made from other options.
_MADE: Final = {"trigger", "source_options", "sink"}


def _interval(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    if value is not None and not _INTERVAL.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not an interval such as '1 second' or '5 minutes'")
    return value


def _limit(_context: click.Context, _parameter: click.Parameter, value: str) -> float:
    try:
        return parse_limit(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor a share such as 0.1") from None


def _command_line_name(option: FlatOption) -> str:
    return "--" + option.name.replace("_", "-")


def _of_the_sink() -> Iterator[Callable[..., Any]]:
    """Yield options for the fields of the sink's value objects, from their declarations."""
    for option in FLAT.values():
        about: dict[str, Any] = {"help": option.help.replace("``", ""), "default": None}
        if option.default not in (None, False, dataclasses.MISSING):
            about |= {"default": option.default, "show_default": True}
        if option.kind is bool:
            about |= {"is_flag": True, "default": False}
        elif option.kind is float:
            about |= {"callback": _limit, "default": str(option.default), "metavar": "N"}
        elif option.kind in (int, int | None):
            about |= {"type": int, "metavar": "N"}
        yield click.option(_command_line_name(option), **about)


_OPTIONS: Final = (
    click.option(
        "--group-id",
        required=True,
        metavar="GROUP",
        help="Consumer group that holds the query's offsets; no other consumer may use it.",
    ),
    click.option(
        "--source", required=True, metavar="TOPIC,...", help="Topics to read, joined by commas."
    ),
    click.option("--target", required=True, metavar="TOPIC", help="Topic to write to."),
    click.option(
        "--checkpoint-location",
        required=True,
        metavar="PATH",
        help="Where Spark keeps the query's checkpoint, on any file system that Spark can use.",
    ),
    click.option(
        "--moved-from",
        metavar="QUERY",
        help="Query whose offsets a new checkpoint continues from, although the target or all "
        "sources differ; the error that asks for this option names the query.",
    ),
    click.option(
        "--available-now",
        is_flag=True,
        help="Process everything available now, in as many batches as needed, then exit.",
    ),
    click.option(
        "--trigger",
        callback=_interval,
        metavar="INTERVAL",
        help="Run until stopped, one batch per INTERVAL.  [default: 1 second]",
    ),
    click.option(
        "--starting-offsets",
        type=click.Choice(["earliest", "latest"]),
        default="earliest",
        show_default=True,
        help="Where a new group without committed offsets starts.",
    ),
    click.option(
        "--max-offsets-per-trigger",
        type=click.IntRange(min=1),
        metavar="N",
        help="Maximum number of records per batch; by default unlimited.",
    ),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Format of the log on stderr; json writes one document per line, with a batch's "
        "fields.",
    ),
    click.option(
        "--metrics-port",
        type=click.IntRange(1, 65_535),
        metavar="PORT",
        help="Port on which to serve Prometheus metrics; needs the extra `metrics`.",
    ),
    click.option(
        "--metrics-address",
        default=JobOptions.metrics_address,
        show_default=True,
        metavar="ADDRESS",
        help="Interface to serve metrics on; 0.0.0.0 means all, so that other hosts can reach "
        "them.",
    ),
)


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add a job's options to a click command, which receives them as a `JobOptions`.

    Examples:
        >>> @click.command()
        ... @job_options
        ... def main(options):
        ...     print(options.source, dict(options.trigger))
        >>> main(
        ...     "--bootstrap-servers localhost:9092 --group-id relay --source orders "
        ...     "--target copy --checkpoint-location c --available-now".split(),
        ...     standalone_mode=False,
        ... )
        orders {'availableNow': True}
    """

    @functools.wraps(command)
    def with_options(
        *,
        moved_from: str | None,
        available_now: bool,
        trigger: str | None,
        max_offsets_per_trigger: int | None,
        **rest: Any,
    ) -> None:
        if available_now and trigger is not None:
            raise click.UsageError("Give --available-now or --trigger, not both.")
        limit = max_offsets_per_trigger
        try:
            sink = grouped({name: rest.pop(name) for name in FLAT}, _command_line_name)
        except ConfigurationError as error:
            raise click.UsageError(str(error)) from error
        own = {field.name for field in dataclasses.fields(JobOptions)} - _MADE
        options = JobOptions(
            **{name: rest.pop(name) for name in own},
            trigger=(
                {"availableNow": True}
                if available_now
                else {"processingTime": trigger or "1 second"}
            ),
            source_options={} if limit is None else {"maxOffsetsPerTrigger": str(limit)},
            sink=sink if moved_from is None else {**sink, "moved_from": moved_from},
        )
        command(options=options, **rest)

    return client_options(
        source_client_options(decorated(with_options, (*_OPTIONS, *_of_the_sink())))
    )
