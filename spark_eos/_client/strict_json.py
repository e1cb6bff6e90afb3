"""JSON that another client may have written: bounded before it is read, and typed afterwards."""

import json
import re
from typing import Any, Final, NoReturn

# offset.metadata.max.bytes, unless brokers have another one.
_MAX_CHARS: Final = 4_096
# The parser calls itself for each list or object in another one.
_MAX_LISTS: Final = 8


def strict_object(text: str) -> dict[str, Any]:
    """Reads an object without numbers that are no integers, NaN and infinity among them.

    Example:
        >>> strict_object('{"suspect":[3,9]}')
        {'suspect': [3, 9]}
        >>> strict_object('{"suspect":[Infinity,1]}')
        Traceback (most recent call last):
        ValueError: not an integer: Infinity
    """
    if len(text) > _MAX_CHARS or text.count("[") + text.count("{") > _MAX_LISTS:
        raise ValueError("too long, or too deeply nested")
    fields = json.loads(text, parse_constant=_refuse, parse_float=_refuse)
    if not isinstance(fields, dict):
        raise ValueError("not an object")  # noqa: TRY004 - of the text, as all other errors
    return fields


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"not an integer: {number}")


def whole(value: object, most: int) -> int:
    """Returns an integer from 0 to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError("not such an integer")
    return value


def matched(value: object, pattern: re.Pattern[str]) -> str:
    """Returns a string that matches a pattern as a whole."""
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ValueError("not such a text")
    return value
