"""The sink's grouped options, each declared once with its name, default, help and check.

The options of jobs and docs/options.md are generated from these declarations. The help comes from
the docstrings' descriptions of arguments.
"""

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from spark_eos._client.argument_types import check_type
from spark_eos._client.checks import check_count, check_positive, check_prefix, check_topic
from spark_eos._client.letter_headers import STYLES
from spark_eos.errors import ConfigurationError

# Maximum numbers of replicas and of partitions in a CreateTopics request.
_INT16: Final = 2**15 - 1
_INT32: Final = 2**31 - 1
# librdkafka's smallest transaction.timeout.ms.
_LEAST_TIMEOUT_MS: Final = 1_000
LEAST_PARTITIONS: Final = 2
"""Minimum number of partitions of a progress topic: one for staged commits, and one for rows."""

Check = Callable[[str, Any], None]


def _positive(name: str, value: object) -> None:
    check_positive(**{name: value})


def _timeout(name: str, value: int) -> None:
    check_count(name, value, _LEAST_TIMEOUT_MS, _INT32)


def _option(check: Check | None = None, flat: str | None = None) -> dict[str, Any]:
    """Return the metadata of a field: a check of its value, and its flat name if that differs."""
    return {"check": check, "flat": flat}


class _Options:
    """Checks all fields when an object is created."""

    _ARGUMENT = ""

    def __post_init__(self) -> None:
        _check(type(self), vars(self), lambda name: f"{self._ARGUMENT}.{name}")


def _check(kind: Any, values: Mapping[str, Any], shown: Callable[[str], str]) -> None:
    """Check values of fields; ``shown`` returns a field's name for errors."""
    hints = typing.get_type_hints(kind)
    for declared in dataclasses.fields(kind):
        if declared.name not in values:
            continue
        name, value = shown(declared.name), values[declared.name]
        check_type(name, value, hints[declared.name])
        if value is not None and (check := declared.metadata.get("check")) is not None:
            check(name, value)
    if issubclass(kind, Transactions):
        most = values.get("max_ms", Transactions.max_ms)
        timeout = values.get("timeout_ms", Transactions.timeout_ms)
        if most >= timeout:
            raise ConfigurationError(
                f"{shown('max_ms')}={most} must be below {shown('timeout_ms')}={timeout}, or the "
                "brokers would abort transactions before they end"
            )


@dataclass(frozen=True, kw_only=True)
class Transactions(_Options):
    """The size limits of a task's transactions, and the prefix of their ids.

    A task commits its transaction and begins another as soon as one of the limits is reached.

    Args:
        max_records: Number of rows after which a task commits its transaction.
        max_bytes: The same limit in bytes of keys, values and headers.
        max_ms: The same limit in milliseconds; must be below timeout_ms.
        timeout_ms: Milliseconds after which the brokers abort a transaction; at most their
            transaction.max.timeout.ms.
        id_prefix: Prefix of all transactional ids, for ACLs.

    Raises:
        ConfigurationError: A value can't be used.

    Examples:
        >>> Transactions(max_records=500_000, max_ms=30_000).timeout_ms
        60000
    """

    _ARGUMENT = "transactions"

    max_records: int = field(
        default=100_000, metadata=_option(_positive, "max_transaction_records")
    )
    max_bytes: int = field(default=64 << 20, metadata=_option(_positive, "max_transaction_bytes"))
    max_ms: int = field(default=10_000, metadata=_option(_positive, "max_transaction_ms"))
    timeout_ms: int = field(default=60_000, metadata=_option(_timeout, "transaction_timeout_ms"))
    id_prefix: str = field(
        default="spark-eos", metadata=_option(check_prefix, "transactional_id_prefix")
    )


def _limit(name: str, most: object) -> None:
    whole = type(most) is int and most >= 0
    share = type(most) is float and 0 <= most <= 1
    if not whole and not share:
        raise ConfigurationError(
            f"{name} is {most!r}; it must be a whole number of rows, or a share of them between "
            "0.0 and 1.0"
        )


def _style(name: str, style: object) -> None:
    if style not in STYLES:
        raise ConfigurationError(
            f"{name} is {style!r}; it must be one of {', '.join(map(repr, STYLES))}"
        )


@dataclass(frozen=True, kw_only=True)
class DeadLetters(_Options):
    """Where to put rows that can't be written, and how many to allow.

    Dead letters are rows whose ``error`` column is not null, and rows that Kafka refuses because of
    their content. They are written in the same transaction as the rows around them.

    Args:
        topic: Topic for rows that can't be written; without a topic, the query fails at the first
            such row.
        limit: Maximum number of dead letters in a batch; the query ends if there are more. A float
            is a share of the batch's source records (staged: of its rows), but always allows at
            least 100 dead letters. Unless the limit is 1.0, a batch of more than five rows that all
            have the same error also ends the query.
        headers: Names of the headers that explain a dead letter: ``dlq`` (``__dlq.errors.*``),
            ``streams`` (``__streams.errors.*``) or ``connect`` (``__connect.errors.*``).
        stacktrace: Whether to add an ``error``'s stack trace, if any. It may show records' values.

    Raises:
        ConfigurationError: A value can't be used.

    Examples:
        >>> DeadLetters("orders-dlq", limit=500).headers
        'dlq'
    """

    _ARGUMENT = "dead_letters"

    topic: str = field(kw_only=False, metadata=_option(check_topic, "dead_letter_topic"))
    limit: float = field(default=0.1, metadata=_option(_limit, "max_dead_letters"))
    headers: str = field(default="dlq", metadata=_option(_style, "dead_letter_headers"))
    stacktrace: bool = field(default=False, metadata=_option(None, "dead_letter_stacktrace"))


def _progress_topic(name: str, text: Any) -> None:
    check_topic(name.partition(".")[0], text)


def _partitions(name: str, value: int) -> None:
    check_count(name, value, LEAST_PARTITIONS, _INT32)


def _replicas(name: str, value: int) -> None:
    check_count(name, value, 1, _INT16)


@dataclass(frozen=True)
class ProgressTopic(_Options):
    """The topic for a mirrored or staged query's progress, and how to create it if it is missing.

    The progress is the group's committed offsets in this topic. The topic contains no records, and
    serves all queries of the cluster.

    Args:
        name: Topic for a mirrored or staged query's progress; created if missing.
        partitions: Number of partitions when the topic is created: one more than the number of
            tasks that may write a staged batch. Mirrored queries add the partitions that they need.
        replicas: Number of replicas when the topic is created; None for the brokers' default.

    Raises:
        ConfigurationError: A value can't be used.

    Examples:
        >>> ProgressTopic().partitions
        33
        >>> ProgressTopic(partitions=1)
        Traceback (most recent call last):
            ...
        spark_eos.errors.ConfigurationError: progress_topic.partitions must be an integer of at \
least 2, not 1 [more: spark-eos explain EOS02]
    """

    _ARGUMENT = "progress_topic"

    name: str = field(
        default="spark-eos-progress", metadata=_option(_progress_topic, "progress_topic")
    )
    partitions: int = field(default=33, metadata=_option(_partitions, "progress_partitions"))
    replicas: int | None = field(default=None, metadata=_option(_replicas, "progress_replicas"))


@dataclass(frozen=True, kw_only=True)
class Limits(_Options):
    """Attempts and waiting times of a query. The defaults rarely need changing.

    Args:
        max_attempts: Maximum number of Spark jobs for one batch, including the first. Later jobs
            write the partitions that failed tasks left unwritten.
        connect_timeout_ms: Milliseconds allowed to reach the cluster and to start a producer.
        group_timeout_ms: Milliseconds allowed for joining the group and for each call to it.
        max_block_ms: Milliseconds for which a running query waits for a missing source topic, or
            for a missing topic that a row names. Kafka's ``max.block.ms`` (KIP-1319).
        metadata_max_idle_ms: Milliseconds after which an unused target topic is forgotten and
            looked up again before its next use. Kafka's ``metadata.max.idle.ms`` (KIP-1319).
        worker_directory: Directory on each host for the host's id and the locks of transactional
            ids; None for a directory below the temporary directory.

    Raises:
        ConfigurationError: A value can't be used.

    Examples:
        >>> Limits(max_block_ms=300_000).max_attempts
        4
    """

    _ARGUMENT = "limits"

    max_attempts: int = field(default=4, metadata=_option(_positive))
    connect_timeout_ms: int = field(default=30_000, metadata=_option(_positive))
    group_timeout_ms: int = field(default=60_000, metadata=_option(_positive))
    max_block_ms: int = field(default=60_000, metadata=_option(_positive))
    metadata_max_idle_ms: int = field(default=300_000, metadata=_option(_positive))
    worker_directory: str | None = field(default=None, metadata=_option())


GROUPS: Final[Mapping[str, Any]] = {
    "transactions": Transactions,
    "dead_letters": DeadLetters,
    "progress_topic": ProgressTopic,
    "limits": Limits,
}
"""The sink's arguments that are value objects."""


class FlatOption(NamedTuple):
    """An option of a value object, for command lines and files, which have no groups."""

    name: str
    argument: str
    field: str
    kind: Any
    default: Any
    help: str


def flat_options() -> Iterator[FlatOption]:
    """Return the options of all value objects, with their flat names."""
    for argument, kind in GROUPS.items():
        helps = _helps(kind)
        for declared in dataclasses.fields(kind):
            name, text = declared.metadata["flat"] or declared.name, helps.get(declared.name, "")
            yield FlatOption(name, argument, declared.name, declared.type, declared.default, text)


def _helps(kind: type) -> dict[str, str]:
    """Return a docstring's descriptions of arguments; none if Python runs without docstrings."""
    arguments = inspect.cleandoc(kind.__doc__ or "").partition("Args:")[2].partition("Raises:")[0]
    described = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", arguments, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in described}


FLAT: Final[Mapping[str, FlatOption]] = {option.name: option for option in flat_options()}


def _grouped_name(option: FlatOption) -> str:
    return f"{option.argument}.{option.field}"


def grouped(
    given: Mapping[str, Any], shown: Callable[[FlatOption], str] = _grouped_name
) -> dict[str, Any]:
    """Return arguments of the sink, with flat options moved into their value objects.

    Other arguments stay as they are. ``shown`` returns an option's name for errors.

    Example:
        >>> grouped({"group_id": "orders", "max_block_ms": 500})["limits"].max_block_ms
        500

    Raises:
        ConfigurationError: A value can't be used.
    """
    nested = {name: value for name, value in given.items() if name not in FLAT}
    values: dict[str, dict[str, Any]] = {}
    for name, value in given.items():
        if (option := FLAT.get(name)) is not None:
            values.setdefault(option.argument, {})[option.field] = value
    dead_letters = values.get("dead_letters", {})
    without_topic = dead_letters.get("topic") is None
    if without_topic:
        dead_letters.pop("topic", None)
    for argument, own in values.items():
        names = {
            option.field: shown(option) for option in FLAT.values() if option.argument == argument
        }
        _check(GROUPS[argument], own, names.__getitem__)
    if without_topic:
        for each in FLAT.values():
            wanted = dead_letters.get(each.field, each.default)
            if each.argument == "dead_letters" and wanted != each.default:
                needed = shown(FLAT["dead_letter_topic"])
                raise ConfigurationError(f"{shown(each)} needs {needed}")
        values.pop("dead_letters", None)
    return {**nested, **{argument: GROUPS[argument](**own) for argument, own in values.items()}}


def parse_limit(text: str) -> float:
    """Parse an option's text as a number of dead letters or a share of rows.

    Example:
        >>> parse_limit("500"), parse_limit("0.05")
        (500, 0.05)

    Raises:
        ValueError: The text is neither.
    """
    try:
        return int(text)
    except ValueError:
        return float(text)
