"""JAAS configuration lines, as Kafka's Java clients and brokers read them.

Kafka's ``sasl.jaas.config`` is one entry of a JAAS file without the entry's name:
``org.example.LoginModule required name="value" other="value";`` (KIP-85). Kafka splits it with
Java's ``StreamTokenizer``; this module follows the same rules for quoted text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_eos.errors import PrintableError

FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_ESCAPES: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"
}  # fmt: skip
_WRITTEN: Final = {"\\": "\\\\", '"': '\\"', **{c: f"\\{name}" for name, c in _ESCAPES.items()}}
_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<mark>[=;])
      | (?P<quote>["'])(?P<quoted>(?:\\[^\r\n]|(?!(?P=quote))[^\\\r\n])*)(?P=quote)
      | (?P<word>[^\s"'=;]+)
    )""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[0-7]{1,2}|.)", re.DOTALL)


class JaasError(PrintableError, ValueError):
    """A line is not a JAAS configuration; the text says where it fails and quotes none of it."""


@dataclass(frozen=True)
class JaasLine:
    """One login module with its options.

    Attributes:
        options: Options of the module; hidden in ``repr``, since they may contain secrets.
        flag: One of `FLAGS`.

    Example:
        >>> JaasLine("PlainLoginModule", {"username": "alice"}).render()
        'PlainLoginModule required username="alice";'
    """

    module: str
    options: Mapping[str, str] = field(repr=False)
    flag: str = "required"

    def render(self) -> str:
        """Formats the line, with every value quoted."""
        options = "".join(f" {name}={_quoted(value)}" for name, value in self.options.items())
        return f"{self.module} {self.flag}{options};"


def _quoted(value: str) -> str:
    return '"' + "".join(_WRITTEN.get(character, character) for character in value) + '"'


def parse_jaas(line: str) -> JaasLine:
    """Parses a line.

    Example:
        >>> parse_jaas("PlainLoginModule required username=alice;").options
        {'username': 'alice'}
    """
    tokens = _tokens(line)
    if tokens and tokens[-1] == _END:
        tokens = tokens[:-1]
    else:
        raise JaasError("it does not end with a semicolon")
    if _END in tokens:
        raise JaasError("it has more than one login module; Kafka allows one")
    if len(tokens) < 2 or "=" in (mark for kind, mark in tokens[:2] if kind == "mark"):
        raise JaasError("it must begin with a login module and a flag such as required")
    module, flag = tokens[0][1], tokens[1][1]
    if flag.lower() not in FLAGS:
        raise JaasError(f"the login module must be followed by one of {', '.join(FLAGS)}")
    options: dict[str, str] = {}
    rest = tokens[2:]
    for at in range(0, len(rest), 3):
        kinds = [kind for kind, _ in rest[at : at + 3]]
        if len(kinds) < 3 or rest[at + 1] != _EQUALS or "mark" in (kinds[0], kinds[2]):
            raise JaasError(f'its option {at // 3 + 1} is not of the form name="value"')
        options[rest[at][1]] = rest[at + 2][1]
    return JaasLine(module, options, flag.lower())


_END: Final = ("mark", ";")
_EQUALS: Final = ("mark", "=")


def _tokens(line: str) -> list[tuple[str, str]]:
    found, at, end = [], 0, len(line.rstrip())
    while at < end:
        match = _TOKEN.match(line, at)
        if match is None:
            raise JaasError(f"the quoted text that begins at character {at + 1} does not end")
        if match["mark"]:
            found.append(("mark", match["mark"]))
        elif match["quote"]:
            found.append(("text", _ESCAPE.sub(_unescaped, match["quoted"])))
        else:
            found.append(("text", match["word"]))
        at = match.end()
    return found


def _unescaped(match: re.Match[str]) -> str:
    what = match[1]
    return chr(int(what, 8)) if what[0] in "01234567" else _ESCAPES.get(what, what)
