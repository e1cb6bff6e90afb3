"""Checks error texts against tests/messages.txt, which `make messages` writes for review."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import pytest

E = TypeVar("E", bound=BaseException)

GOLDEN: Final = Path(__file__).parent.parent / "messages.txt"
_WRITE: Final = "WRITE_MESSAGES"
# Parts of messages that differ from run to run.
_VARYING: Final = (
    (re.compile(re.escape(tempfile.gettempdir()) + r"/pytest-of-[^/]+/pytest-\d+/[^/\s']+"), "TMP"),
    (re.compile(r"\b127\.0\.0\.1:\d{4,5}\b"), "127.0.0.1:PORT"),
)


def golden() -> dict[str, list[str]]:
    """The messages by test, in the order in which a test expects them."""
    text = GOLDEN.read_text(encoding="utf-8") if GOLDEN.exists() else ""
    tests = re.findall(r"^(tests/.*)\n((?:    .*\n)*)", text, re.MULTILINE)
    return {test: [line[4:] for line in lines.splitlines()] for test, lines in tests}


@contextmanager
def says(kind: type[E]) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expects an error of class ``kind`` whose text is the test's next one in the golden file."""
    with pytest.raises(kind) as caught:
        yield caught
    _Test.now().expect(f"{caught.type.__name__}: {_steady(str(caught.value))}")


def _steady(text: str) -> str:
    for pattern, instead in _VARYING:
        text = pattern.sub(instead, text)
    return text.replace("\\", "\\\\").replace("\n", "\\n")


class _Test:
    """The running test and its messages so far."""

    current: "_Test | None" = None

    def __init__(self, run: str) -> None:
        self._run = run
        self._name = run.rpartition(" (")[0].encode("unicode_escape").decode()
        self._seen: list[str] = []

    @classmethod
    def now(cls) -> "_Test":
        run = os.environ["PYTEST_CURRENT_TEST"]
        if cls.current is None or cls.current._run != run:
            cls.current = cls(run)
        return cls.current

    def expect(self, message: str) -> None:
        self._seen.append(message)
        known = golden()
        if os.environ.get(_WRITE):
            known[self._name] = self._seen
            tests = sorted(known.items())
            lines = (line for test, texts in tests for line in (test, *(f"    {t}" for t in texts)))
            GOLDEN.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            return
        number = len(self._seen)
        expected = known.get(self._name, [])[number - 1 : number]
        assert [message] == expected, "`make messages` writes what is said now, for a review"
