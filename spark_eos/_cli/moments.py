"""Timestamps of records, for people."""

from datetime import datetime, timedelta, timezone
from typing import Final

_EPOCH: Final = datetime.fromtimestamp(0, timezone.utc)


def moment(milliseconds: int) -> datetime | None:
    """The time in UTC; None of a timestamp that Python has no date for.

    Example:
        >>> print(moment(1_000))
        1970-01-01 00:00:01+00:00
    """
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
