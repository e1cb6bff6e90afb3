"""The headers that explain a dead letter: their names, and how to write and read them."""

# A source record may already have such headers, either because it is another query's dead letter or
# because they are forged. Therefore, a dead letter's own explanation comes last, in one block, and
# only that block is trusted.

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from spark_eos._client.persisted import FORMAT

Header = tuple[str, bytes | None]

REPLACED: Final = "\ufffd"
"""Java's replacement for invalid UTF-8; Spark shows it in header names that are not UTF-8."""

_FORMAT: Final = str(FORMAT).encode()

_NAMES: Final = (
    "topic",
    "partition",
    "offset",
    "cluster",
    "group",
    "message",
    "reason",
    "exception",
    "stacktrace",
    "timestamp",
    "omitted",
    "record",
    "format",
)


def _names(prefix: str, **others: str) -> dict[str, str]:
    return {name: prefix + others.get(name, name) for name in _NAMES}


STYLES: Final[Mapping[str, Mapping[str, str]]] = {
    "dlq": _names("__dlq.errors."),
    "streams": _names("__streams.errors."),
    "connect": _names(
        "__connect.errors.",
        group="connector.name",
        message="exception.message",
        exception="exception.class.name",
        stacktrace="exception.stacktrace",
    ),
}
"""Header names by style: share groups (Kafka 4.4, KIP-1191), Kafka Streams (KIP-1034) and
Kafka Connect (KIP-298)."""

OTHER_FORMAT: Final = "written in another format, by another version of spark-eos"
"""The reason shown for a dead letter that this version can't read."""

_BY_REASON: Final = {
    names["reason"]: {header: name for name, header in names.items()} for names in STYLES.values()
}


@dataclass(frozen=True)
class LetterHeaders:
    """A dead letter's headers: the record's own, and those that explain the failure (`STYLES`)."""

    own: list[Header]
    error_headers: dict[str, bytes]


def replaced_headers(style: str, own: Iterable[Header]) -> list[str]:
    """Return the names of a record's own headers that the explanation will replace."""
    names = set(STYLES[style].values())
    return [name for name, _ in own if name in names]


def write_letter_headers(
    style: str, own: Iterable[Header], error_headers: Mapping[str, bytes]
) -> list[Header]:
    """Return the record's own headers without the style's names, followed by the explanation."""
    names = STYLES[style]
    known = set(names.values())
    kept = [header for header in own if header[0] not in known]
    error_headers = {**error_headers, "format": _FORMAT}
    return kept + [(names[name], text) for name, text in error_headers.items()]


def read_letter_headers(headers: Iterable[Header]) -> LetterHeaders:
    """Split a dead letter's headers; the inverse of `write_letter_headers`."""
    # The last `reason` header determines the style. The explanation is the unbroken run of headers
    # of that style around the `reason`, in which no name is repeated; all other headers are the
    # record's own. Without a `reason` header, there is no explanation. If another version wrote the
    # explanation, it is replaced by a reason that says so.
    given = list(headers)
    last = max((at for at, (name, _) in enumerate(given) if name in _BY_REASON), default=None)
    if last is None:
        return LetterHeaders(given, {})
    names = _BY_REASON[given[last][0]]
    seen: set[str] = set()

    def explains(at: int) -> bool:
        name = given[at][0]
        if name not in names or name in seen:
            return False
        seen.add(name)
        return True

    begin = end = last
    while end < len(given) and explains(end):
        end += 1
    while begin > 0 and explains(begin - 1):
        begin -= 1
    error_headers = {names[name]: content or b"" for name, content in given[begin:end]}
    if error_headers.pop("format", None) != _FORMAT:
        error_headers = {"reason": OTHER_FORMAT.encode()}
    return LetterHeaders(given[:begin] + given[end:], error_headers)
