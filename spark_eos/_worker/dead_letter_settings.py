"""Dead letters: rows that can't be written as they are, and go to a topic of their own; pure."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from spark_eos._client.printable import printable
from spark_eos.options import DeadLetters

# Why a row became a dead letter; also the values of a metric's label.
ERROR: Final = "error"
EXCEPTION: Final = "exception"
TOO_LARGE: Final = "too_large"
UNKNOWN_TOPIC: Final = "unknown_topic"
UNKNOWN_PARTITION: Final = "unknown_partition"
INVALID_HEADER: Final = "invalid_header"
INVALID_RECORD: Final = "invalid_record"

# A share of a small batch would be less than a handful.
_AT_LEAST: Final = 100
# What a task tells of its errors' texts, which may all differ.
_MAX_ERRORS: Final = 50
_MAX_TEXT: Final = 200
# More rows than these with one error, and no other row, are no coincidence.
_HANDFUL: Final = 5
# What of an error's text may be the row's own: what is quoted, and words with a digit.
_OF_THE_ROW: Final = re.compile(
    r"""(?<!\w)[bru]{0,2}(?:'[^']*(?:'|$)|"[^"]*(?:"|$))|(?<![\w-])[\w-]*\d[\w-]*"""
)
# An error's text may hold the row's value, of any length.
_MAX_COMPARED: Final = 2_000


@dataclass(frozen=True, kw_only=True)
class DeadLetterSettings(DeadLetters):
    """The sink's option, and whether rows have source positions, and in which other cluster."""

    positions: bool = True
    cluster: str | None = None

    @classmethod
    def of(cls, letters: DeadLetters | None) -> "DeadLetterSettings | None":
        """Return the settings of an option."""
        return None if letters is None else cls(**vars(letters))

    @property
    def allows_all(self) -> bool:
        """True if all rows of a batch may be dead letters, of whatever error."""
        return type(self.limit) is float and self.limit == 1.0

    def most(self, records: int) -> int:
        """Maximum number of dead letters in a batch of so many source records, or staged rows."""
        if isinstance(self.limit, int):
            return self.limit
        return max(_AT_LEAST, int(self.limit * records))


@dataclass
class DeadLetterTally:
    """How many dead letters there are, and why; the first position of each reason."""

    reasons: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    # Texts that differ only in numbers and in what they quote are one error; where the row itself
    # has none, those of one reason are.
    errors: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.reasons.values())

    @property
    def is_one_error(self) -> bool:
        """True if all have one error, and are more than a handful."""
        return len(self.errors) == 1 and self.total > _HANDFUL

    def add(self, reason: str, position: str, error: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        self.first.setdefault(reason, position)
        alike = reason
        if reason in (ERROR, EXCEPTION):
            alike = _shortened(_OF_THE_ROW.sub("~", error[:_MAX_COMPARED]))
        if alike in self.errors or len(self.errors) < _MAX_ERRORS:
            self.errors[alike] = self.errors.get(alike, 0) + 1
            self.texts.setdefault(alike, _shortened(error))

    def include(self, other: "DeadLetterTally") -> None:
        """Add another tally, which comes after this one."""
        for mine, others in ((self.reasons, other.reasons), (self.errors, other.errors)):
            for name, number in others.items():
                mine[name] = mine.get(name, 0) + number
        self.first = {**other.first, **self.first}
        self.texts = {**other.texts, **self.texts}

    def most_frequent(self, number: int = 3) -> str:
        """Return the most frequent errors, for a text."""
        commonest = Counter(self.errors).most_common(number)
        return "; ".join(
            f"{times} times: {printable(self.texts[error])}" for error, times in commonest
        )


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "..."
