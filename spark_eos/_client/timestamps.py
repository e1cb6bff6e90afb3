"""Timestamps of records as librdkafka's producer takes them."""

from typing import Final

NOW: Final = 0
"""What the producer takes for the time of writing: so no record of that very time can be made."""
NO_TIMESTAMP: Final = -1
"""A record's that has none, as of old producers: each topic takes it."""
EPOCH: Final = 1
"""A record of 1970-01-01T00:00:00Z moves by the least."""


def producer_timestamp(milliseconds: int | None) -> int:
    """What ``Producer.produce`` takes for a record's timestamp.

    Example:
        >>> [producer_timestamp(t) for t in (1_000, 0, None, -5)]
        [1000, 1, 0, -5]
    """
    return NOW if milliseconds is None else milliseconds or EPOCH
