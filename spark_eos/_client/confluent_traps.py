"""Calls of confluent-kafka that end the process if made in the plain way."""

from operator import methodcaller
from typing import Any, Final

from confluent_kafka import Message

from spark_eos._client.letter_headers import Header

UNREADABLE: Final = "headers, since one is null, or a name is not UTF-8 or has U+0000"
"""What of a record is not known or can't be written, for a text."""

_UNREADABLE: Final[list[Header]] = []
# confluent-kafka returns a list with gaps and leaves the error set. Python checks for that in calls
# by way of C, but not in a line that has run several times: there it would come up elsewhere.
_headers: Final = methodcaller(Message.headers.__name__)


def headers_of(message: Any) -> tuple[Header, ...] | None:
    """A record's headers; None if confluent-kafka can't read them, since a name is not UTF-8."""
    try:
        headers: Any = _headers(message)
    except SystemError as error:
        if not isinstance(_first(error), UnicodeDecodeError):
            raise
        # confluent-kafka keeps a list with gaps, and would return it the next time: to look at
        # one ends the process.
        message.set_headers(_UNREADABLE)
        return None
    return None if headers is _UNREADABLE else tuple(headers or ())


def _first(error: BaseException) -> BaseException:
    """The error that all others were raised from: each further name raises from the one before."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
