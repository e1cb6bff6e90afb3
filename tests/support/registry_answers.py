"""A stub of a schema registry, for answers that a real one can't be made to give."""

import re
import ssl
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from support.http_server import Request, http_server

_LATEST = re.compile(r"/subjects/([^/?]+)/versions/(?:latest|\d+)")
_KEY = re.compile(r"/schemas/(?:ids|guids)/([^/?]+)")
_NOT_FOUND = (404, {"error_code": 40403, "message": "Schema not found"})


@dataclass
class StubRegistry:
    """Has one schema for each subject."""

    url: str = ""
    # By subject: id, GUID, text and format.
    schemas: dict[str, tuple[int, str, str, str]] = field(default_factory=dict)
    # Status and body of the next requests, before it answers as it should.
    answers: list[tuple[int, Any]] = field(default_factory=list)
    # Headers of that name that it was sent.
    authorization: list[str | None] = field(default_factory=list)

    def add(self, subject: str, text: str, kind: str = "AVRO") -> tuple[int, str]:
        """Gives a subject a schema; returns its id and GUID."""
        number, guid = len(self.schemas) + 1, str(uuid.uuid4())
        self.schemas[subject] = (number, guid, text, kind)
        return number, guid

    def answer(self, request: Request) -> None:
        """A subject's schema, or the schema of an id or a GUID."""
        self.authorization.append(request.headers.get("authorization"))
        status, body = self.answers.pop(0) if self.answers else self._found(request.path)
        request.reply(status, body)

    def _found(self, path: str) -> tuple[int, Any]:
        latest, key = _LATEST.match(path), _KEY.match(path)
        for subject, (number, guid, text, kind) in self.schemas.items():
            if (latest and latest[1] == subject) or (key and key[1] in {str(number), guid}):
                ids = {"id": number, "guid": guid, "version": 1, "subject": subject}
                return 200, {**ids, "schema": text, "schemaType": kind}
        return _NOT_FOUND


@contextmanager
def stub_registry(tls: ssl.SSLContext | None = None) -> Iterator[StubRegistry]:
    registry = StubRegistry()
    with http_server(registry.answer, tls) as url:
        registry.url = url.rpartition("/")[0]
        yield registry
