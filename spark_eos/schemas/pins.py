"""Stores the subject versions that a query started with, next to its checkpoint."""

import json
import re
from dataclasses import asdict
from typing import Final
from urllib.parse import quote

from spark_eos._checkpoint.marker import Files
from spark_eos._client.persisted import check_format
from spark_eos.errors import CheckpointError
from spark_eos.schemas.client import Registered
from spark_eos.schemas.formats import Schema

FORMAT: Final = 3
DECODE: Final = "decode"
ENCODE: Final = "encode"
_DIRECTORY: Final = "spark-eos/schemas"
_NAME: Final = re.compile(rf"({DECODE}|{ENCODE})-([1-9]\d*)")


class Pins:
    """The pinned versions of subjects, in numbered directories; the highest number counts."""

    def __init__(self, files: Files, role: str) -> None:
        self._files = files
        self._role = role  # DECODE or ENCODE; a subject may have a pin for each role

    def read(self, subject: str) -> Registered | None:
        """Return a subject's pinned version, or None; raise CheckpointError if it is unusable."""
        pin = self._last(subject)
        if pin is not None:
            return _parsed(*pin, self._role, subject)
        for name in self._files.names(_directory(subject)):
            if _NAME.fullmatch(name) is None:
                where = f"{self._files.location}/{_directory(subject)}/{name}"
                raise _unusable(f"{where} is not a pinned schema of this version of spark-eos")
        return None

    def write(self, pin: Registered) -> None:
        """Pin a version for later runs."""
        directory = _directory(pin.subject)
        text = json.dumps({"format": FORMAT, "role": self._role, **asdict(pin)})
        last = self._last(pin.subject)
        if last is None or last[1].strip() != text:
            number = max(map(self._number, self._files.names(directory)), default=0) + 1
            self._files.write(f"{directory}/{self._role}-{number}", text)

    def _last(self, subject: str) -> tuple[str, str] | None:
        """Return the path and text of the last pin; None if there is none."""
        directory = _directory(subject)
        for name in sorted(self._files.names(directory), key=self._number, reverse=True):
            path = f"{directory}/{name}"
            # The file is missing if the driver was killed before writing it.
            for file in self._files.names(path) if self._number(name) else ():
                place = f"{path}/{file}"
                return f"{self._files.location}/{place}", self._files.read(place) or ""
        return None

    def _number(self, name: str) -> int:
        match = _NAME.fullmatch(name)
        return int(match[2]) if match and match[1] == self._role else 0


def _directory(subject: str) -> str:
    # Without the prefix, some names would be hidden, and hidden files are not listed.
    return f"{_DIRECTORY}/of-{quote(subject, safe='').replace('%', '=')}"


def _unusable(why: str) -> CheckpointError:
    return CheckpointError(f"{why}: pass version= once, a number or 'latest', to pin it again")


def _parsed(where: str, text: str, role: str, subject: str) -> Registered:
    try:
        fields = json.loads(text)
        again = "; or only pin the schema again: pass version= once, a number or 'latest'"
        check_format(fields.pop("format"), f"the pinned schema {where}", FORMAT, otherwise=again)
        own = fields.pop("role"), fields["subject"]
        schema = fields.pop("schema")
        references = tuple((name, other) for name, other in schema["references"])
        whole = Schema(schema["kind"], schema["text"], references)
        pin = Registered(**fields, schema=whole)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise _unusable(f"{where} is not a pinned schema, or not a complete one") from None
    if own != (role, subject):
        raise _unusable(f"{where} is the {own[0]} pin of subject {own[1]!r}")
    return pin
