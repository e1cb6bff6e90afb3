"""What headers of records say; anybody may have written them.

Dead letters are read by what docs/dead-letters.md promises, not by the code that writes them.
"""

import re
from collections.abc import Iterable
from typing import Final

from confluent_kafka import Message

from spark_eos._client.confluent_traps import headers_of

# Neither `bytes.isdigit` nor `int` will do: the latter raises on thousands of digits.
_NUMBER: Final = re.compile(rb"[0-9]{1,19}")
_STYLES: Final = tuple(f"__{style}.errors." for style in ("dlq", "streams", "connect"))
_REASON: Final = "reason"


def header(message: Message, name: str) -> bytes | None:
    """The value of a header; the last one if there are several."""
    return dict(headers_of(message) or ()).get(name)


def number(text: bytes, most: int) -> int | None:
    """The number from 0 to ``most`` that a text is; None for any other text.

    Example:
        >>> number(b"12", 99), number(b"100", 99), number(b"-1", 99), number(b"9" * 5_000, 99)
        (12, None, None, None)
    """
    found = int(text) if _NUMBER.fullmatch(text) else -1
    return found if 0 <= found <= most else None


def dead_letter_position(headers: Iterable[tuple[str, bytes | None]]) -> bytes | None:
    """The source's ``topic:partition:offset``, as a dead letter's headers say in any style.

    The last ``reason`` belongs to the letter's explanation; what a source record brought along is
    before or after it, and not believed.

    Example:
        >>> own = [("__connect.errors.topic", b"made up"), ("__connect.errors.reason", b"made up")]
        >>> explanation = [("topic", b"orders"), ("reason", b"e"), ("partition", b"1")]
        >>> explanation += [("offset", b"7")]
        >>> letter = own + [("__dlq.errors." + name, value) for name, value in explanation]
        >>> dead_letter_position(letter), dead_letter_position(own)
        (b'orders:1:7', None)
    """
    found = list(headers)
    names = [name for name, _ in found]
    reasons = [at for at, name in enumerate(names) if name.removesuffix(_REASON) in _STYLES]
    if not reasons:
        return None
    last = reasons[-1]
    style = names[last].removesuffix(_REASON)
    said: dict[str, bytes] = {}
    # From the reason to the end, then back to the beginning, each as far as there is no gap.
    for around in (found[last:], found[:last][::-1]):
        for name, value in around:
            if not name.startswith(style) or name in said:
                break
            said[name] = value or b""
    parts = [said.get(style + name, b"") for name in ("topic", "partition", "offset")]
    return b":".join(parts) if all(parts) else None
