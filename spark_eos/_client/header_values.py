"""Numbers and names in record headers: anybody may have written them, so both are bounded."""

# Neither `str.isdigit` nor `int` will do: the former takes characters that the latter refuses, such
# as a superscript two, and the latter raises on thousands of digits.

import re
from typing import Final

MAX_PARTITION: Final = (1 << 31) - 1
"""The highest number of a partition."""
MAX_OFFSET: Final = (1 << 63) - 1
"""The highest offset, and the last millisecond a record can have."""

# As many digits as the largest number of 64 bits has.
_NUMBER: Final = re.compile(rb"-?[0-9]{1,19}")
TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
"""Kafka's own rule for names of topics."""


def header_number(text: bytes | str | None, most: int, least: int = 0) -> int | None:
    """Read a number; None if there is none, or one that is out of range."""
    value = text.encode(errors="replace") if isinstance(text, str) else text
    if value is None or _NUMBER.fullmatch(value) is None:
        return None
    number = int(value)
    return number if least <= number <= most else None


def topic_name(text: str | None) -> str | None:
    """Return a name that a topic can have; None for any other text."""
    return text if text is not None and TOPIC_NAME.fullmatch(text) else None
