"""What headers of records say; anybody may have written them."""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from confluent_kafka import Message

from spark_eos._client.confluent_traps import headers_of

# Neither `bytes.isdigit` nor `int` will do: the latter raises on thousands of digits.
_NUMBER: Final = re.compile(rb"[0-9]{1,19}")
# By the prefix of a style, its name for the group; as docs/dead-letters.md promises.
_STYLES: Final = {
    "__dlq.errors.": "group",
    "__streams.errors.": "group",
    "__connect.errors.": "connector.name",
}
_REASON: Final = "reason"


def header(message: Message, name: str) -> bytes | None:
    """Return the value of a header; the last one if there are several."""
    return dict(headers_of(message) or ()).get(name)


def number(text: bytes, most: int) -> int | None:
    """Return the number from 0 to ``most`` that a text is; None for any other text."""
    parsed = int(text) if _NUMBER.fullmatch(text) else -1
    return parsed if 0 <= parsed <= most else None


class Letter(NamedTuple):
    """The query's group, and the source record's topic and ``topic:partition:offset``."""

    group: bytes = b""
    topic: bytes = b""
    position: bytes | None = None


def dead_letter(headers: Iterable[tuple[str, bytes | None]]) -> Letter:
    """What the headers of a dead letter say, in any style; those of other records say nothing."""
    given = list(headers)
    names = [name for name, _ in given]
    reasons = [at for at, name in enumerate(names) if name.removesuffix(_REASON) in _STYLES]
    if not reasons:
        return Letter()
    # What a source record brought along is before or after the explanation, and not believed.
    last = reasons[-1]
    style = names[last].removesuffix(_REASON)
    said: dict[str, bytes] = {}
    # From the reason to the end, then back to the beginning, each as far as there is no gap.
    for around in (given[last:], given[:last][::-1]):
        for name, value in around:
            if not name.startswith(style) or name in said:
                break
            said[name] = value or b""
    at = [said.get(style + name, b"") for name in ("topic", "partition", "offset")]
    group = said.get(style + _STYLES[style], b"")
    return Letter(group, at[0], b":".join(at) if all(at) else None)
