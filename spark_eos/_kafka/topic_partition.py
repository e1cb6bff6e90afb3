"""A partition of a topic."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition of a topic, equal to a plain tuple."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Positions = dict[TopicPartition, int]
"""An offset for each partition."""
