"""Numbers and names in record headers, limited in size because anyone may have written them."""

# `str.isdigit` and `int` are not enough: `isdigit` accepts characters that `int` refuses, such as a
# superscript two, and `int` raises on thousands of digits.

import re
from typing import Final

MAX_PARTITION: Final = (1 << 31) - 1
"""The highest partition number."""
MAX_OFFSET: Final = (1 << 63) - 1
"""The highest offset, and the latest timestamp of a record in milliseconds."""

# The largest 64-bit number has 19 digits.
_NUMBER: Final = re.compile(rb"-?[0-9]{1,19}")
TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
"""Kafka's own rule for topic names."""


def header_number(text: bytes | str | None, most: int, least: int = 0) -> int | None:
    """Parse a number; return None if the text is not a number, or is out of range."""
    value = text.encode(errors="replace") if isinstance(text, str) else text
    if value is None or _NUMBER.fullmatch(value) is None:
        return None
    number = int(value)
    return number if least <= number <= most else None


def topic_name(text: str | None) -> str | None:
    """Return the text if it is a valid topic name, otherwise None."""
    return text if text is not None and TOPIC_NAME.fullmatch(text) else None
