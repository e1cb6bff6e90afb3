"""A schema registry, as far as serializers of Confluent's client talk to it."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from support.http_server import Request, http_server

_VERSIONS = re.compile(r"/subjects/([^/?]+)/versions")
_SUBJECT = re.compile(r"/subjects/([^/?]+)(?:\?|$)")
_ID = re.compile(r"/schemas/ids/(\d+)")


@dataclass
class SchemaRegistry:
    """What is registered.

    Attributes:
        url: its address.
        schemas: all schemas; the first one has id 1.
        subjects: ids by subject, in order of version.
        away: whether it answers each request with 503.
    """

    url: str = ""
    schemas: list[str] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    away: bool = False

    def answer(self, request: Request) -> None:
        """Registers a schema, finds its id, or finds the schema of an id."""
        status, body = (503, _error(50301, "away")) if self.away else self._found(request)
        encoded = json.dumps(body).encode()
        request.send_response(status)
        request.send_header("content-type", "application/vnd.schemaregistry.v1+json")
        request.send_header("content-length", str(len(encoded)))
        request.end_headers()
        request.wfile.write(encoded)

    def _found(self, request: Request) -> tuple[int, dict[str, Any]]:
        if request.command == "GET":
            wanted = _ID.match(request.path)
            if wanted and 0 < int(wanted[1]) <= len(self.schemas):
                return 200, {"schema": self.schemas[int(wanted[1]) - 1]}
            return 404, _error(40403, "Schema not found")
        schema = json.loads(request.body)["schema"]
        if subject := _VERSIONS.match(request.path):
            return 200, {"id": self.register(subject[1], schema)}
        subject = _SUBJECT.match(request.path)
        ids = self.subjects.get(subject[1], []) if subject else []
        for version, number in enumerate(ids, 1):
            if subject and json.loads(self.schemas[number - 1]) == json.loads(schema):
                return 200, {
                    "subject": subject[1],
                    "version": version,
                    "id": number,
                    "schema": schema,
                }
        return 404, _error(40403, "Schema not found")

    def register(self, subject: str, schema: str) -> int:
        """Registers a schema; returns its id."""
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        ids = self.subjects.setdefault(subject, [])
        if number not in ids:
            ids.append(number)
        return number


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    """Runs an empty one on 127.0.0.1."""
    registry = SchemaRegistry()
    with http_server(registry.answer) as url:
        registry.url = url.rpartition("/")[0]
        yield registry
