"""Options of Spark's Kafka source: which options a query may set, and to which values."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from spark_eos._client.argument_types import check_type
from spark_eos._client.settings import JAVAS_CONSUMER, QUICK_SOURCE, ClientSettings
from spark_eos.errors import ConfigurationError, UnsupportedPipelineError

_ELSEWHERE: Final = (
    "the group's committed offsets take precedence: to begin elsewhere, set them before the first "
    "start, for example with kafka-consumer-groups.sh --reset-offsets --to-datetime or, if the "
    "source is in another cluster, with spark-eos progress --set"
)
_REFUSED: Final = {
    "minpartitions": "it splits source partitions across tasks",
    "maxrecordsperpartition": "it splits source partitions across tasks",
    "startingoffsets": f"use starting_offsets; {_ELSEWHERE}",
    "startingoffsetsbytimestamp": _ELSEWHERE,
    "startingoffsetsbytimestampstrategy": _ELSEWHERE,
    "startingtimestamp": _ELSEWHERE,
    "endingoffsets": "a streaming query has no end",
    "endingoffsetsbytimestamp": "a streaming query has no end",
    "endingtimestamp": "a streaming query has no end",
    "subscribe": "use the argument of that name",
    "subscribepattern": "use the argument of that name",
    "assign": "use the argument of that name",
    "includeheaders": "use include_headers",
    "failondataloss": "use fail_on_data_loss",
}
_INT32: Final = 2**31 - 1
_INT64: Final = 2**63 - 1
# The smallest and the largest value. Spark checks no value before the query runs, and with 0
# records per batch the query writes nothing and succeeds.
_NUMBERS: Final = {
    "maxOffsetsPerTrigger": (1, _INT64),
    "minOffsetsPerTrigger": (0, _INT64),
    "fetchOffset.numRetries": (1, _INT32),
    "fetchOffset.retryIntervalMs": (0, _INT64),
    "kafkaConsumer.pollTimeoutMs": (1, _INT64),
    **dict(zip(QUICK_SOURCE, ((0, _INT32), (1, _INT32)), strict=True)),
}
_DELAY: Final = "maxTriggerDelay"
# The format that Spark's JavaUtils.timeStringAs parses.
_DURATION: Final = re.compile(r"[0-9]+(us|ms|s|m|min|h|d)?", re.IGNORECASE)
# Spark accepts options that it doesn't know, and ignores them.
_KNOWN: Final = {
    name.lower(): name for name in sorted((*_NUMBERS, _DELAY, "groupIdPrefix"), reverse=True)
}
NUMERIC: Final = tuple(name for name in _KNOWN if name != "groupidprefix")
"""Options that `check_numbers` checks, in lower case."""
_LOGIN_HANDLER: Final = "kafka.sasl.login.callback.handler.class"


def selection_of(
    subscribe: str | Iterable[str] | None,
    pattern: str | None,
    assign: str | Mapping[str, Iterable[int]] | None,
) -> dict[str, str]:
    """Return the topics and partitions to read, as options of Spark's source."""
    if subscribe is not None and not isinstance(subscribe, str):
        subscribe = ",".join(subscribe)
    if subscribe is not None:
        # Java trims fewer characters than Python: Spark must read the names that we check.
        subscribe = ",".join(name.strip() for name in subscribe.split(","))
    if isinstance(assign, Mapping):
        assign = json.dumps({topic: list(indexes) for topic, indexes in assign.items()})
    given = {"subscribe": subscribe, "subscribePattern": pattern, "assign": assign}
    return {name: text for name, text in given.items() if text is not None}


def check_source_options(
    starting_offsets: str, options: Mapping[str, object], client: ClientSettings
) -> dict[str, str]:
    """Refuse options that would break offset order or are set elsewhere; return all as strings."""
    if starting_offsets not in ("earliest", "latest"):
        raise ConfigurationError(
            f"starting_offsets is {starting_offsets!r}; it must be 'earliest' or 'latest'; "
            f"{_ELSEWHERE}"
        )
    own_login = client.security.sasl is not None and client.security.sasl.needs_java_handler
    if own_login and _LOGIN_HANDLER not in (name.lower() for name in options):
        raise ConfigurationError(
            "Spark's Kafka source runs in Java and can't call oauth_cb: give sink.read the option "
            f"{_LOGIN_HANDLER!r}, a Java class that fetches tokens, and, if that class needs them, "
            "'kafka.sasl.jaas.config' and other 'kafka.sasl.' options"
        )
    for name, value in options.items():
        check_type(f"source option {name!r}", value, bool | float | str)
        reason = _REFUSED.get(name.lower())
        if reason is not None:
            raise UnsupportedPipelineError(f"source option {name!r} can't be used: {reason}")
        if own_login and name.lower().startswith("kafka.sasl."):
            continue
        if name.lower() in _KNOWN:
            continue
        if name.lower().startswith("kafka."):
            setting = JAVAS_CONSUMER.get(name.lower().removeprefix("kafka."))
            shown = "" if setting is None else f" as {setting!r}"
            raise ConfigurationError(
                f"source option {name!r} is a client setting: set it once,{shown} in kafka= of the "
                "sink (source_kafka= if the source is in another cluster)"
            )
        nearest = difflib.get_close_matches(name.lower(), _KNOWN, n=1)
        names = [_KNOWN[known] for known in nearest] or [*_KNOWN.values()]
        raise ConfigurationError(
            f"Spark's Kafka source has no option {name!r}: do you mean {' or '.join(names)}?"
        )
    texts = {name: str(value) for name, value in options.items()}
    check_numbers(texts)
    return texts


def check_numbers(options: Mapping[str, str]) -> None:
    """Refuse numbers that Spark would misread, or fail on once the query runs."""
    given = {name.lower(): text for name, text in options.items()}
    for name, (least, most) in _NUMBERS.items():
        text = given.get(name.lower())
        if text is None:
            continue
        # Java allows no underscores or spaces.
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise ConfigurationError(
                f"source option {name!r} must be a whole number from {least} to {most}, "
                f"not {text!r}"
            )
    if (delay := given.get(_DELAY.lower())) is not None and not _DURATION.fullmatch(delay):
        raise ConfigurationError(
            f"source option {_DELAY!r} must be a time such as '15m' or '30s', not {delay!r}"
        )
    low, high = given.get("minoffsetspertrigger", "0"), given.get("maxoffsetspertrigger", _INT64)
    if int(low) > int(high):
        raise ConfigurationError(
            f"source option 'minOffsetsPerTrigger'={low} is above 'maxOffsetsPerTrigger'={high}"
        )
