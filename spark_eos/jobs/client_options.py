"""The command-line options of a client, shared by commands and jobs."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource


def _settings_of(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Settings of the form key=value; for click."""
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
    """Settings of a file's lines; for click."""
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


def setting_options(
    name: str, setting: str, file: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds ``--NAME`` and ``--NAME-config`` to a click command, which receives them as one mapping.

    Args:
        name: The first option's name, without dashes before it.
        setting: Its help.
        file: Help of the second, a file of such settings, which the first overrides.

    Example:
        >>> @click.command()
        ... @setting_options("registry", "A setting.", "A file of settings.")
        ... def show(registry):
        ...     print(registry)
        >>> show(["--registry", "url=http://localhost:8081"], standalone_mode=False)
        {'url': 'http://localhost:8081'}
    """
    argument = name.replace("-", "_")
    options = (
        click.option(
            f"--{name}", multiple=True, callback=_settings_of, metavar="KEY=VALUE", help=setting
        ),
        click.option(
            f"--{name}-config",
            type=click.Path(path_type=Path),
            callback=_file_settings,
            metavar="FILE",
            help=file,
        ),
    )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_settings(**given: Any) -> None:
            of_file = given.pop(f"{argument}_config")
            command(**{**given, argument: {**of_file, **given[argument]}})

        return decorated(with_settings, options)

    return decorate


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
    help="The Kafka cluster that is read, if it is another one.",
)
_source_kafka_options: Final = setting_options(
    "source-kafka",
    "As --kafka, for that cluster, which gets none of the other settings.",
    "As --kafka-config, for that cluster.",
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
        {'acks': 'all', 'bootstrap.servers': 'a:9092'}
    """

    @functools.wraps(command)
    def with_servers(*, bootstrap_servers: str, kafka: Mapping[str, str], **rest: Any) -> None:
        command(kafka={**kafka, "bootstrap.servers": bootstrap_servers}, **rest)

    return bootstrap_servers_option(_kafka_options(with_servers))


def source_client_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a client of the source cluster, received as ``source_kafka``.

    They are ``--source-bootstrap-servers``, ``--source-kafka`` and ``--source-kafka-config``.
    Without the first, ``source_kafka`` is None and the others are a usage error.

    Example:
        >>> @click.command()
        ... @source_client_options
        ... def show(source_kafka):
        ...     print(source_kafka)
        >>> show(["--source-bootstrap-servers", "b:9092"], standalone_mode=False)
        {'bootstrap.servers': 'b:9092'}
        >>> show([], standalone_mode=False)
        None
    """

    @functools.wraps(command)
    def with_servers(
        *, source_bootstrap_servers: str | None, source_kafka: Mapping[str, str], **rest: Any
    ) -> None:
        found = None
        if source_bootstrap_servers is not None:
            found = {**source_kafka, "bootstrap.servers": source_bootstrap_servers}
        else:
            _refuse_without_servers()
        command(source_kafka=found, **rest)

    return _source_bootstrap_servers_option(_source_kafka_options(with_servers))


def _refuse_without_servers() -> None:
    context = click.get_current_context()
    for name in ("source_kafka", "source_kafka_config"):
        # Not by their values: a file may have no settings.
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option} needs --source-bootstrap-servers.")


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
