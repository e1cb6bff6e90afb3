"""Parses record headers, which anybody may have written."""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from confluent_kafka import Message

from spark_eos._client.confluent_traps import headers_of

# `bytes.isdigit` is not enough: it accepts thousands of digits, on which `int` raises.
_NUMBER: Final = re.compile(rb"[0-9]{1,19}")
# Each style's prefix and its header for the group, as promised in docs/dead-letters.md.
_STYLES: Final = {
    "__dlq.errors.": "group",
    "__streams.errors.": "group",
    "__connect.errors.": "connector.name",
}
_REASON: Final = "reason"


def header(message: Message, name: str) -> bytes | None:
    """Return the value of a header, the last one if it is repeated."""
    return dict(headers_of(message) or ()).get(name)


def number(text: bytes, most: int) -> int | None:
    """Parse a number from 0 to ``most``; return None for any other text."""
    parsed = int(text) if _NUMBER.fullmatch(text) else -1
    return parsed if 0 <= parsed <= most else None


class Letter(NamedTuple):
    """A dead letter's group, source topic, and source position as ``topic:partition:offset``."""

    group: bytes = b""
    topic: bytes = b""
    position: bytes | None = None


def dead_letter(headers: Iterable[tuple[str, bytes | None]]) -> Letter:
    """Parse the headers of a dead letter, in any style; for other records all fields are empty."""
    given = list(headers)
    names = [name for name, _ in given]
    reasons = [at for at, name in enumerate(names) if name.removesuffix(_REASON) in _STYLES]
    if not reasons:
        return Letter()
    # Headers copied from the source record come before or after the explanation and are ignored.
    last = reasons[-1]
    style = names[last].removesuffix(_REASON)
    values: dict[str, bytes] = {}
    # Search from the reason forwards, then backwards, each time up to the first gap.
    for around in (given[last:], given[:last][::-1]):
        for name, value in around:
            if not name.startswith(style) or name in values:
                break
            values[name] = value or b""
    at = [values.get(style + name, b"") for name in ("topic", "partition", "offset")]
    group = values.get(style + _STYLES[style], b"")
    return Letter(group, at[0], b":".join(at) if all(at) else None)
