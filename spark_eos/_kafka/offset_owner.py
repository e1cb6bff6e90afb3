"""Whose offsets a group has: the query that committed them, and its default target topic; no I/O.

Each offset's text tells it, in every transaction: so both are kept short.
"""

import hashlib
import re
from typing import Any, Final, NamedTuple

from spark_eos._client.strict_json import matched

# Of Spark's random id: enough to tell the queries of a group apart, and to be copied by hand.
_ID_CHARS: Final = 8
_MOST_CHARS: Final = 64
_HASH_CHARS: Final = 8
_QUERY: Final = re.compile(rf"[0-9A-Za-z-]{{1,{_ID_CHARS}}}")
# No topic has a "~" in its name.
_TARGET: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{_MOST_CHARS}}}(~[0-9a-f]{{{_HASH_CHARS}}})?")


class Owner(NamedTuple):
    """The query that committed an offset.

    Attributes:
        query: The beginning of Spark's id of the query, which is that of its checkpoint.
        target: Its default target topic; None if its rows name their topics.

    Example:
        >>> owner = Owner.of("5f1c0a7e-31c2-4d0c-a4a4-2f0c9f0e7d55", "orders-enriched")
        >>> owner
        Owner(query='5f1c0a7e', target='orders-enriched')
        >>> Owner.parse(owner.as_json()) == owner
        True
    """

    query: str
    target: str | None

    @classmethod
    def of(cls, query_id: str, topic: str | None) -> "Owner":
        """The owner as texts tell it; a long name is cut, and followed by a hash of all of it.

        Example:
            >>> Owner.of("5f1c", "t" * 200).target[-12:]
            'ttt~8cbeafc0'
        """
        if topic is not None and len(topic) > _MOST_CHARS:
            digest = hashlib.sha256(topic.encode()).hexdigest()[:_HASH_CHARS]
            topic = f"{topic[: _MOST_CHARS - 1 - _HASH_CHARS]}~{digest}"
        return cls(query_id[:_ID_CHARS], topic)

    @classmethod
    def parse(cls, fields: Any) -> "Owner":
        """Reads what `as_json` has made."""
        query, target = fields
        return cls(matched(query, _QUERY), None if target is None else matched(target, _TARGET))

    def as_json(self) -> list[str | None]:
        """The owner as a value of JSON."""
        return [self.query, self.target]

    @property
    def written_to(self) -> str:
        """Where its rows went, as errors call it."""
        return "the topics that its rows name" if self.target is None else f"{self.target!r}"
