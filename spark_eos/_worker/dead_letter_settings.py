"""The settings and the tally of dead letters, the rows that go to a separate topic; no I/O."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from spark_eos._client.printable import printable
from spark_eos.options import DeadLetters

# Why a row became a dead letter. These are also the values of a metric's label.
ERROR: Final = "error"
EXCEPTION: Final = "exception"
TOO_LARGE: Final = "too_large"
UNKNOWN_TOPIC: Final = "unknown_topic"
UNKNOWN_PARTITION: Final = "unknown_partition"
INVALID_HEADER: Final = "invalid_header"
INVALID_RECORD: Final = "invalid_record"

# A limit given as a share allows at least this many: a share of a small batch is only a few rows.
_AT_LEAST: Final = 100
# A task reports at most this many error texts, of at most so many characters each: every row's
# text may differ.
_MAX_ERRORS: Final = 50
_MAX_TEXT: Final = 200
# If more rows than this have an error, and all have the same one, that is no coincidence.
_HANDFUL: Final = 5
# The parts of an error's text that may come from the row: quoted text, and words with a digit.
_OF_THE_ROW: Final = re.compile(
    r"""(?<!\w)[bru]{0,2}(?:'[^']*(?:'|$)|"[^"]*(?:"|$))|(?<![\w-])[\w-]*\d[\w-]*"""
)
# Compare only this many characters: an error's text may quote a row's value of any length.
_MAX_COMPARED: Final = 2_000


@dataclass(frozen=True, kw_only=True)
class DeadLetterSettings(DeadLetters):
    """The sink's option, plus the source's cluster and whether rows have source positions."""

    positions: bool = True
    cluster: str | None = None

    @classmethod
    def of(cls, option: DeadLetters | None) -> "DeadLetterSettings | None":
        """Return the settings for the sink's option."""
        return None if option is None else cls(**vars(option))

    @property
    def allows_all(self) -> bool:
        """True if all rows of a batch may be dead letters, whatever their error."""
        return type(self.limit) is float and self.limit == 1.0

    def most(self, records: int) -> int:
        """Return how many dead letters are allowed in a batch of ``records`` records or rows."""
        if isinstance(self.limit, int):
            return self.limit
        return max(_AT_LEAST, int(self.limit * records))


@dataclass
class DeadLetterTally:
    """Counts dead letters by reason and by error, and keeps each reason's first position."""

    reasons: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    # Texts that differ only in numbers and quoted parts count as one error. For reasons other than
    # the query's own errors, each reason counts as one error.
    errors: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.reasons.values())

    @property
    def is_one_error(self) -> bool:
        """True if there are more than a handful of dead letters, all with the same error."""
        return len(self.errors) == 1 and self.total > _HANDFUL

    def add(self, reason: str, position: str, error: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        self.first.setdefault(reason, position)
        kind = reason
        if reason in (ERROR, EXCEPTION):
            kind = _shortened(_OF_THE_ROW.sub("~", error[:_MAX_COMPARED]))
        if kind in self.errors or len(self.errors) < _MAX_ERRORS:
            self.errors[kind] = self.errors.get(kind, 0) + 1
            self.texts.setdefault(kind, _shortened(error))

    def include(self, other: "DeadLetterTally") -> None:
        """Add a later tally to this one."""
        for mine, others in ((self.reasons, other.reasons), (self.errors, other.errors)):
            for name, number in others.items():
                mine[name] = mine.get(name, 0) + number
        self.first = {**other.first, **self.first}
        self.texts = {**other.texts, **self.texts}

    def most_frequent(self, number: int = 3) -> str:
        """Return the most frequent errors, for a message."""
        commonest = Counter(self.errors).most_common(number)
        return "; ".join(
            f"{times} times: {printable(self.texts[error])}" for error, times in commonest
        )


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "..."
