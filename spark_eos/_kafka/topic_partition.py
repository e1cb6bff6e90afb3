"""A partition of a topic."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition of a topic, equal to a plain tuple.

    Example:
        >>> print(TopicPartition("orders", 0))
        orders-0
        >>> TopicPartition("orders", 0) == ("orders", 0)
        True
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
