"""Calls to confluent-kafka that would crash the process if made directly."""

from operator import methodcaller
from typing import Any, Final

from confluent_kafka import Message

from spark_eos._client.letter_headers import Header

UNREADABLE: Final = "headers, since one is null, or a name is not UTF-8 or has U+0000"
"""How a dead letter describes headers that are unknown or can't be written."""

_UNREADABLE: Final[list[Header]] = []
# If a name is unreadable, confluent-kafka returns a list with gaps and leaves the exception set.
# Python detects the exception in calls that go through C, such as methodcaller's. In direct calls,
# Python stops detecting it once the line has run several times, and it surfaces somewhere else.
_headers: Final = methodcaller(Message.headers.__name__)


def headers_of(message: Any) -> tuple[Header, ...] | None:
    """Return a record's headers, or None if they can't be read because a name is not UTF-8."""
    try:
        headers: Any = _headers(message)
    except SystemError as error:
        if not isinstance(_first(error), UnicodeDecodeError):
            raise
        # confluent-kafka keeps the list with gaps and would return it on the next call.
        # Accessing a gap crashes the process.
        message.set_headers(_UNREADABLE)
        return None
    return None if headers is _UNREADABLE else tuple(headers or ())


def _first(error: BaseException) -> BaseException:
    """Return the first error in the chain: each further unreadable name raises another."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
