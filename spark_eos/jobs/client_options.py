"""Command-line options for Kafka clients, shared by commands and jobs."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource


def decorated(
    command: Callable[..., None], options: Sequence[Callable[..., Any]]
) -> Callable[..., None]:
    """Add click options to a command, in the order in which the help shows them."""
    return functools.reduce(lambda inner, option: option(inner), reversed(options), command)


def _settings_of(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Parse key=value settings, which override the settings in the file; a callback for click."""
    settings: dict[str, str] = dict(context.meta.get(f"{parameter.name}_config", {}))
    for text in values:
        name, equals, value = text.partition("=")
        if not name.strip() or not equals:
            # The message doesn't quote the value, which may be a URL with a password.
            raise click.BadParameter("a value is not of the form key=value")
        settings[name.strip()] = value
    return settings


def _keep_file(context: click.Context, parameter: click.Parameter, file: Path | None) -> None:
    """Keep the settings in a file for `_settings_of`; a callback for click."""
    if file is None:
        return
    try:
        # Editors on Windows begin files with a byte order mark.
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise click.BadParameter(f"{str(file)!r} can't be read: {why}") from None
    settings = context.meta[str(parameter.name)] = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not name.strip() or not equals:
            # The message doesn't quote the line, which may hold a secret.
            raise click.BadParameter(f"line {number} of {str(file)!r} is not of the form key=value")
        settings[name.strip()] = value.strip()


def setting_options(
    name: str,
    setting: str,  # the help of --NAME, which overrides the file's settings
    file: str,  # the help of --NAME-config
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add ``--NAME`` and ``--NAME-config`` to a command, which receives them as one mapping."""
    options = (
        click.option(
            f"--{name}", multiple=True, callback=_settings_of, metavar="KEY=VALUE", help=setting
        ),
        click.option(
            f"--{name}-config",
            type=click.Path(path_type=Path),
            callback=_keep_file,
            is_eager=True,
            expose_value=False,
            metavar="FILE",
            help=file,
        ),
    )
    return functools.partial(decorated, options=options)


bootstrap_servers_option: Final = click.option(
    "--bootstrap-servers", required=True, metavar="HOST:PORT,...", help="The Kafka cluster."
)
_kafka_options: Final = setting_options(
    "kafka",
    "Client setting by its librdkafka name, such as compression.type=zstd; repeatable.",
    "File of client settings, one KEY=VALUE per line. Use it for secrets: other users of the "
    "machine can see command lines.",
)
_source_bootstrap_servers_option: Final = click.option(
    "--source-bootstrap-servers",
    metavar="HOST:PORT,...",
    help="The Kafka cluster to read from, if it is a different one.",
)
_source_kafka_options: Final = setting_options(
    "source-kafka",
    "Like --kafka, but for the source cluster, which gets no other settings.",
    "Like --kafka-config, but for the source cluster.",
)


def client_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--bootstrap-servers``, ``--kafka`` and ``--kafka-config`` as one ``kafka`` argument."""

    @functools.wraps(command)
    def with_servers(*, bootstrap_servers: str, kafka: Mapping[str, str], **rest: Any) -> None:
        command(kafka={**kafka, "bootstrap.servers": bootstrap_servers}, **rest)

    return bootstrap_servers_option(_kafka_options(with_servers))


def source_client_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the source cluster's options as one ``source_kafka`` argument, None if not given."""

    @functools.wraps(command)
    def with_servers(
        *, source_bootstrap_servers: str | None, source_kafka: Mapping[str, str], **rest: Any
    ) -> None:
        if source_bootstrap_servers is not None:
            servers = {"bootstrap.servers": source_bootstrap_servers}
            command(source_kafka={**source_kafka, **servers}, **rest)
            return
        context = click.get_current_context()
        for name in ("source_kafka", "source_kafka_config"):
            # The values don't show whether an option was given: a file may have no settings.
            if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
                option = "--" + name.replace("_", "-")
                raise click.UsageError(f"{option} needs --source-bootstrap-servers.")
        command(source_kafka=None, **rest)

    return _source_bootstrap_servers_option(_source_kafka_options(with_servers))
