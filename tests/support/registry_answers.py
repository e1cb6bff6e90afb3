"""A stub of a schema registry, for answers that a real registry can't be made to give."""

import re
import ssl
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from support.http_server import Request, http_server

_LATEST = re.compile(r"/subjects/([^/]+)/versions/(?:latest|\d+)")
_ID = re.compile(r"/schemas/ids/(\d+)")
_GUID = re.compile(r"/schemas/guids/([^/]+)")
_CONTEXT = re.compile(r":\.[^:]+:|")
_NOT_FOUND = (404, {"error_code": 40403, "message": "Schema not found"})


@dataclass
class StubRegistry:
    """Has one schema per subject and, like Confluent's registry, separate ids in each context."""

    url: str = ""
    # By subject: id (unique within its context), GUID, text, format and references.
    schemas: dict[str, tuple[int, str, str, str, Any]] = field(default_factory=dict)
    # Status and body of the next answers; later answers are correct.
    answers: list[tuple[int, Any]] = field(default_factory=list)
    # Seconds before each answer.
    delay: float = 0
    # Received headers of that name.
    authorization: list[str | None] = field(default_factory=list)

    def add(
        self, subject: str, text: str, kind: str = "AVRO", references: Any = ()
    ) -> tuple[int, str]:
        """Registers a subject's schema; returns its id and GUID."""
        number = 1 + sum(_context(other) == _context(subject) for other in self.schemas)
        guid = str(uuid.uuid4())
        self.schemas[subject] = (number, guid, text, kind, [*references])
        return number, guid

    def answer(self, request: Request) -> None:
        """Answers with a subject's schema, or the schema of an id or a GUID."""
        self.authorization.append(request.headers.get("authorization"))
        time.sleep(self.delay)
        status, body = self.answers.pop(0) if self.answers else self._found(request.path)
        request.reply(status, body)

    def _found(self, path: str) -> tuple[int, Any]:
        url = urlsplit(path)
        subject, number, guid = (kind.match(url.path) for kind in (_LATEST, _ID, _GUID))
        context = _context(parse_qs(url.query).get("subject", [""])[0])
        for name, (own, own_guid, text, kind, references) in self.schemas.items():
            if (
                (subject and unquote(subject[1]) == name)
                or (number and (int(number[1]), context) == (own, _context(name)))
                or (guid and guid[1] == own_guid)
            ):
                ids = {"id": own, "guid": own_guid, "version": 1, "subject": name}
                return 200, {**ids, "schema": text, "schemaType": kind, "references": references}
        return _NOT_FOUND


def _context(subject: str) -> str:
    found = _CONTEXT.match(subject)
    return found[0] if found else ""


@contextmanager
def stub_registry(tls: ssl.SSLContext | None = None) -> Iterator[StubRegistry]:
    registry = StubRegistry()
    with http_server(registry.answer, tls) as url:
        registry.url = url.rpartition("/")[0]
        yield registry
