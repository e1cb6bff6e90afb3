"""JAAS configuration lines, as Kafka's Java clients and brokers read them (KIP-85)."""

# Kafka splits a line with Java's StreamTokenizer. This parser treats quoted text the same way.

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_eos.errors import PrintableError

_ESCAPES: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"
}  # fmt: skip
_WRITTEN: Final = {"\\": "\\\\", '"': '\\"', **{c: f"\\{name}" for name, c in _ESCAPES.items()}}
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_HEAD: Final = re.compile(rf"\s*([^\s\"'=;]+)\s+(?:{'|'.join(_FLAGS)})(?=[\s;])", re.IGNORECASE)
_TEXT: Final = r"""("(?:\\.|[^"\\\r\n])*"|'(?:\\.|[^'\\\r\n])*'|[^\s"'=;]+)"""
_OPTION: Final = re.compile(rf"\s*{_TEXT}\s*=\s*{_TEXT}")
_WORD: Final = re.compile(r"[A-Za-z_$][\w$.-]*", re.ASCII)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[0-7]{1,2}|.)")


class JaasError(PrintableError, ValueError):
    """A line is not a JAAS configuration; the message says why, without quoting the line."""


@dataclass(frozen=True)
class JaasLine:
    """One login module with its options, which may be secret."""

    module: str
    options: Mapping[str, str] = field(repr=False)

    def render(self) -> str:
        """Format the line, with every value quoted, and names that Kafka would split."""
        options = "".join(
            f" {name if _WORD.fullmatch(name) else _quoted(name)}={_quoted(value)}"
            for name, value in self.options.items()
        )
        return f"{self.module} required{options};"


def _quoted(value: str) -> str:
    return '"' + "".join(_WRITTEN.get(character, character) for character in value) + '"'


def parse_jaas(line: str) -> JaasLine:
    head = _HEAD.match(line)
    if head is None:
        raise JaasError(
            f"it must begin with a login module, followed by one of {', '.join(_FLAGS)}"
        )
    options, at = {}, head.end()
    while option := _OPTION.match(line, at):
        options[_plain(option[1])] = _plain(option[2])
        at = option.end()
    if line[at:].strip() != ";":
        raise JaasError(
            f'after character {at}, expected another option (name="value") or a semicolon at the '
            "end; Kafka allows only one login module"
        )
    return JaasLine(head[1], options)


def _plain(text: str) -> str:
    return _ESCAPE.sub(_unescaped, text[1:-1]) if text[0] in "\"'" else text


def _unescaped(match: re.Match[str]) -> str:
    what = match[1]
    return chr(int(what, 8)) if what[0] in "01234567" else _ESCAPES.get(what, what)
