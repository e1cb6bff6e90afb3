"""Options of ``format("kafka-eos")``: those of `ExactlyOnceSink`, in Spark's spelling."""

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_eos.batch.dead_letters import dead_letter_settings, parse_max_dead_letters
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.client.checks import check_positive, check_text
from spark_eos.client.settings import ClientSettings
from spark_eos.errors import ConfigurationError, SparkEosError
from spark_eos.spark.sink import ExactlyOnceSink

_CLIENT: Final = "kafka."
_IDLE_TIMEOUT: Final = "idle_timeout_ms"
_REQUIRED: Final = inspect.Parameter.empty
# Options that Spark adds to those that the user has set.
_SPARKS_OWN: Final = ("queryname",)
_OF_STAGED_QUERIES: Final = (
    "delivery",
    "progress_topic",
    "progress_partitions",
    "progress_replicas",
)
# A data source has one job per batch, and its options are text: it can't take functions.
# And it writes directly, within one cluster, with Spark's log.
_OF_THE_SINK_ONLY: Final = (
    "asynchronous_progress",
    "kafka",
    "source_kafka",
    "max_rounds",
    "on_batch",
    *_OF_STAGED_QUERIES,
)

# Secret client settings that Spark does not recognize as secrets (spark.redaction.regex).
_SHOWN_BY_SPARK: Final = {"ssl.key.pem": "ssl.key.location"}


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_PARSERS: Final[Mapping[type, Callable[[str], Any]]] = {int: int, float: float, bool: _parse_bool}
_SPECIAL_PARSERS: Final = {"max_dead_letters": parse_max_dead_letters}


@dataclass(frozen=True)
class _Option:
    name: str
    default: Any
    parse: Callable[[str], Any]

    @property
    def shown(self) -> str:
        return _camel_case(self.name)

    def value(self, text: str) -> Any:
        try:
            return self.parse(text)
        except ValueError:
            kind = "true or false" if self.parse is _parse_bool else "a number"
            raise ConfigurationError(f"option {self.shown} must be {kind}, not {text!r}") from None


def _known() -> dict[str, _Option]:
    found = [_Option(_IDLE_TIMEOUT, 600_000, int)]
    for parameter in inspect.signature(ExactlyOnceSink).parameters.values():
        if parameter.name not in _OF_THE_SINK_ONLY:
            usual = _PARSERS.get(parameter.annotation, str)
            parse = _SPECIAL_PARSERS.get(parameter.name, usual)
            found.append(_Option(parameter.name, parameter.default, parse))
    return {option.shown.lower(): option for option in found}


KNOWN: Final = _known()


@dataclass(frozen=True)
class DataSourceOptions:
    """Checked options of a data source query.

    Attributes:
        settings: The writer's settings.
        checkpoint_location: The query's checkpoint.
        max_members: Maximum number of group members.
        group_timeout_ms: Milliseconds allowed for each call to the group.
        idle_timeout_ms: Milliseconds without a batch after which the members leave.
    """

    settings: WriterSettings
    checkpoint_location: str
    max_members: int
    group_timeout_ms: int
    idle_timeout_ms: int


def query_location(options: Mapping[str, str]) -> tuple[str, str]:
    """The group and the checkpoint, which identify a query.

    Raises:
        ConfigurationError: One of them is missing.
    """
    group_id, checkpoint = (options.get(n.lower(), "") for n in ("groupId", "checkpointLocation"))
    if not checkpoint:
        raise ConfigurationError(
            "option checkpointLocation is missing: set it as an option of the query, since a data "
            "source can't see spark.sql.streaming.checkpointLocation"
        )
    check_text("groupId", group_id)
    return group_id, checkpoint


def answer_within(options: Mapping[str, str]) -> float:
    """Seconds within which a query's keeper answers any request, or gives up.

    The keeper makes several calls to the group in turn, each within ``groupTimeoutMs``, and may
    wait for transactions to end.

    Raises:
        ConfigurationError: An option is not a number; the error names it.
    """
    connect, group, transaction, block = (
        option.value(options[shown]) if shown in options else option.default
        for shown in ("connecttimeoutms", "grouptimeoutms", "transactiontimeoutms", "maxblockms")
        for option in [KNOWN[shown]]
    )
    return float(connect + 8 * group + 2 * transaction + 2 * block) / 1000


def read_options(options: Mapping[str, str]) -> DataSourceOptions:
    """Reads the options as Spark passes them, with their names in lower case.

    Raises:
        ConfigurationError: An option is unknown, missing or can't be used; the error names it. See
            `in_option_names`.
    """
    kafka = {
        name.removeprefix(_CLIENT): text
        for name, text in options.items()
        if name.startswith(_CLIENT)
    }
    for name, instead in _SHOWN_BY_SPARK.items():
        if name in kafka:
            raise ConfigurationError(
                f"option {_CLIENT}{name} can't be used: versions of Spark that show options would "
                "print it in plans and event logs, since Spark does not recognize its name as a "
                f"secret's. Set {_CLIENT}{instead}, a file on the driver's host"
            )
    chosen = {
        option.name: option.default for option in KNOWN.values() if option.default is not _REQUIRED
    }
    chosen |= {
        KNOWN[name].name: KNOWN[name].value(text)
        for name, text in options.items()
        if _is_known(name)
    }
    query_location(options)
    checkpoint_location = chosen.pop("checkpoint_location")
    numbers = {
        name: chosen.pop(name) for name in ("max_members", "group_timeout_ms", _IDLE_TIMEOUT)
    }
    check_positive(**numbers)
    client = ClientSettings(kafka).checked_by_librdkafka()
    letters = dead_letter_settings(
        chosen.pop("dead_letter_topic"),
        chosen.pop("max_dead_letters"),
        chosen.pop("dead_letter_headers"),
        stacktrace=chosen.pop("dead_letter_stacktrace"),
    )
    settings = WriterSettings(client=client, dead_letters=letters, **chosen)
    return DataSourceOptions(settings, checkpoint_location, **numbers)


def _is_known(name: str) -> bool:
    if name.startswith(_CLIENT) or name in _SPARKS_OWN:
        return False
    if name in KNOWN:
        return True
    for other in _OF_STAGED_QUERIES:
        if name in (other, _camel_case(other).lower()):
            raise ConfigurationError(
                f"option {_camel_case(other)} can't be used: format('kafka-eos') writes directly "
                "only. Use ExactlyOnceSink, which also stages batches, to write a query that "
                "shuffles, keeps state or reads other sources than Kafka"
            )
    (nearest,) = difflib.get_close_matches(name, [*KNOWN, f"{_CLIENT}bootstrap.servers"], 1) or [""]
    shown = KNOWN[nearest].shown if nearest in KNOWN else nearest
    hint = (
        f"did you mean {shown}?"
        if nearest
        else (
            f"the options are {', '.join(sorted(o.shown for o in KNOWN.values()))}, and Kafka's "
            f"client settings after {_CLIENT!r}"
        )
    )
    raise ConfigurationError(f"there is no option {name!r}: {hint}")


_NAMES: Final = re.compile(rf"\b({'|'.join(o.name for o in KNOWN.values() if '_' in o.name)})\b")
_CLIENT_SETTING: Final = re.compile(r"kafka\['([^']+)'\]")


def in_option_names(error: SparkEosError) -> SparkEosError:
    """The error with option names as a data source's user writes them.

    Example:
        >>> from spark_eos.errors import ConfigurationError
        >>> in_option_names(ConfigurationError("max_members must be a number above 0"))
        ConfigurationError('maxMembers must be a number above 0')
    """
    text = _NAMES.sub(lambda found: _camel_case(found[0]), str(error))
    error.args = (_CLIENT_SETTING.sub(rf"{_CLIENT}\1", text), *error.args[1:])
    return error
