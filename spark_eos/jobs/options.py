"""The command-line options of spark-submit jobs."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

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
        source_kafka: Client settings of the cluster that has the source topics; None if it is the
            target's.

    Example:
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


def _settings(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    settings = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not name.strip() or not equals:
            raise click.BadParameter(f"{text!r} is not of the form key=value")
        settings[name.strip()] = value
    return settings


def _file_settings(
    _context: click.Context, _parameter: click.Parameter, file: Path | None
) -> dict[str, str]:
    settings: dict[str, str] = {}
    if file is None:
        return settings
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise click.BadParameter(f"{str(file)!r} can't be read: {why}") from None
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not name.strip() or not equals:
            # Not quoted: the line may hold a secret.
            raise click.BadParameter(f"line {number} of {str(file)!r} is not of the form key=value")
        settings[name.strip()] = value.strip()
    return settings


def _interval(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    if value is not None and not _INTERVAL.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not an interval such as '1 second' or '5 minutes'")
    return value


bootstrap_servers_option: Final = click.option(
    "--bootstrap-servers", required=True, metavar="HOST:PORT,...", help="The Kafka cluster."
)
_CLIENT: Final = (
    bootstrap_servers_option,
    click.option(
        "--kafka",
        multiple=True,
        callback=_settings,
        metavar="KEY=VALUE",
        help="Client setting by its librdkafka name, such as compression.type=zstd; repeatable.",
    ),
    click.option(
        "--kafka-config",
        type=click.Path(path_type=Path),
        callback=_file_settings,
        metavar="FILE",
        help="File of client settings, one KEY=VALUE per line. Use it for secrets: other users of "
        "the machine can see command lines.",
    ),
)


def client_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds a client's options to a click command, which receives them as ``kafka``.

    They are ``--bootstrap-servers``, ``--kafka`` and ``--kafka-config``; every command that
    connects to a cluster has them.

    Example:
        >>> @click.command()
        ... @client_options
        ... def show(kafka):
        ...     print(kafka)
        >>> show(["--bootstrap-servers", "a:9092", "--kafka", "acks=all"], standalone_mode=False)
        {'bootstrap.servers': 'a:9092', 'acks': 'all'}
    """

    @functools.wraps(command)
    def with_options(
        *,
        bootstrap_servers: str,
        kafka: Mapping[str, str],
        kafka_config: Mapping[str, str],
        **rest: Any,
    ) -> None:
        command(kafka={**kafka_config, "bootstrap.servers": bootstrap_servers, **kafka}, **rest)

    return decorated(with_options, _CLIENT)


_SOURCE_CLIENT: Final = (
    click.option(
        "--source-bootstrap-servers",
        metavar="HOST:PORT,...",
        help="The Kafka cluster that has the source topics, if it is another one.",
    ),
    click.option(
        "--source-kafka",
        "source_settings",
        multiple=True,
        callback=_settings,
        metavar="KEY=VALUE",
        help="Client setting for that cluster; repeatable.",
    ),
    click.option(
        "--source-kafka-config",
        type=click.Path(path_type=Path),
        callback=_file_settings,
        metavar="FILE",
        help="File of client settings for that cluster, one KEY=VALUE per line.",
    ),
)


def source_client_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds options for a client of the source's cluster, received as ``source_kafka``.

    The command gets None if the source is in the cluster of `client_options`.

    Example:
        >>> @click.command()
        ... @source_client_options
        ... def show(source_kafka):
        ...     print(source_kafka)
        >>> show(["--source-bootstrap-servers", "a:9092"], standalone_mode=False)
        {'bootstrap.servers': 'a:9092'}
    """

    @functools.wraps(command)
    def with_options(
        *,
        source_bootstrap_servers: str | None,
        source_settings: Mapping[str, str],
        source_kafka_config: Mapping[str, str],
        **rest: Any,
    ) -> None:
        source = None
        if source_bootstrap_servers is not None:
            servers = {"bootstrap.servers": source_bootstrap_servers}
            source = {**source_kafka_config, **servers, **source_settings}
        elif source_settings or source_kafka_config:
            raise click.UsageError(
                "--source-kafka and --source-kafka-config are for the cluster that "
                "--source-bootstrap-servers names: give it too."
            )
        command(source_kafka=source, **rest)

    return decorated(with_options, _SOURCE_CLIENT)


def decorated(
    command: Callable[..., None], options: Sequence[Callable[..., Any]]
) -> Callable[..., None]:
    """Adds click options to a command, in the order in which help shows them.

    Example:
        >>> @click.command()
        ... @functools.partial(decorated, options=[click.option("--a"), click.option("--b")])
        ... def show(a, b): ...
        >>> [parameter.name for parameter in show.params]
        ['a', 'b']
    """
    return functools.reduce(lambda inner, option: option(inner), reversed(options), command)


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
        help="Where Spark keeps the query's checkpoint, on any file system Spark can use.",
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
        help="Where to start in partitions without a committed offset of the group.",
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
        help="Format of the log on stderr; json is one document per line, with a batch's fields.",
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
        help="Interface to serve them on; 0.0.0.0 for all, so that other hosts can reach them.",
    ),
)


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds a job's options to a click command, which receives them as a `JobOptions`.

    Example:
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
        group_id: str,
        source: str,
        target: str,
        checkpoint_location: str,
        available_now: bool,
        trigger: str | None,
        starting_offsets: str,
        max_offsets_per_trigger: int | None,
        log_format: str,
        metrics_port: int | None,
        metrics_address: str,
        kafka: Mapping[str, str],
        source_kafka: Mapping[str, str] | None,
        **rest: Any,
    ) -> None:
        if available_now and trigger is not None:
            raise click.UsageError("Give --available-now or --trigger, not both.")
        limit = max_offsets_per_trigger
        options = JobOptions(
            kafka=kafka,
            group_id=group_id,
            source=source,
            target=target,
            checkpoint_location=checkpoint_location,
            trigger=(
                {"availableNow": True}
                if available_now
                else {"processingTime": trigger or "1 second"}
            ),
            starting_offsets=starting_offsets,
            source_options={} if limit is None else {"maxOffsetsPerTrigger": str(limit)},
            log_format=log_format,
            metrics_port=metrics_port,
            metrics_address=metrics_address,
            source_kafka=source_kafka,
        )
        command(options=options, **rest)

    return client_options(source_client_options(decorated(with_options, _OPTIONS)))
