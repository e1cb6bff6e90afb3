"""The topics that a query reads in the cluster it writes to, which its rows may not be for."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class SourceTopics:
    """Topics by name and by pattern; sent to tasks, which see no plan.

    Attributes:
        names: Topic names.
        patterns: Regular expressions that match whole names (``subscribePattern``).

    Example:
        >>> read = SourceTopics(("orders",), ("payments-.*",))
        >>> [read.has(topic) for topic in ("orders", "payments-eu", "orders-enriched")]
        [True, True, False]
    """

    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def has(self, topic: str) -> bool:
        """Whether the query reads a topic."""
        return topic in self.names or any(re.fullmatch(text, topic) for text in self.patterns)

    def __or__(self, other: "SourceTopics") -> "SourceTopics":
        return SourceTopics(
            tuple(sorted({*self.names, *other.names})),
            tuple(sorted({*self.patterns, *other.patterns})),
        )
