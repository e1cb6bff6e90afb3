"""Which version of a subject a query has begun with, kept with its checkpoint."""

import json
from dataclasses import asdict
from typing import Final
from urllib.parse import quote

from spark_eos._client.persisted import FORMAT, check_format
from spark_eos._driver.marker_files import Files
from spark_eos.schemas.client import Registered
from spark_eos.schemas.formats import Schema

_DIRECTORY: Final = "spark-eos/schemas"


class Pins:
    """The pinned versions of subjects, each in a numbered directory: the last whole one counts."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self, subject: str) -> Registered | None:
        """The pinned version of a subject."""
        directory = _directory(subject)
        for number in sorted(self._numbers(directory), reverse=True):
            path = f"{directory}/{number}"
            for name in self._files.names(path):
                if (found := _parsed(self._files.read(f"{path}/{name}") or "")) is not None:
                    return found
        return None

    def write(self, pin: Registered) -> None:
        """Pins a version, from now on."""
        directory = _directory(pin.subject)
        number = max(self._numbers(directory), default=0) + 1
        text = json.dumps({"format": FORMAT, **asdict(pin)})
        self._files.write(f"{directory}/{number}", text)

    def _numbers(self, directory: str) -> list[int]:
        return [int(name) for name in self._files.names(directory) if name.isdecimal()]


def _directory(subject: str) -> str:
    # Hidden files are not listed: so not only what a path can't have is quoted.
    return f"{_DIRECTORY}/of-{quote(subject, safe='').replace('%', '=')}"


def _parsed(text: str) -> Registered | None:
    try:
        fields = json.loads(text)
    except ValueError:
        return None
    check_format(fields.pop("format"), "the pinned schema")
    schema = fields.pop("schema")
    references = tuple((name, text) for name, text in schema["references"])
    return Registered(**fields, schema=Schema(schema["kind"], schema["text"], references))
