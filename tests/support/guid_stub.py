"""A stub for the only feature that the tests' schema registry lacks: GUIDs.

It forwards each request to the real registry, adds the GUID that Confluent's registry would have
to the answers, and answers lookups by GUID itself.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from support.http_server import Request, http_server

_GUID = re.compile(r"/schemas/guids/([^/?]+)(?:\?|$)")
_ID = re.compile(r"/schemas/ids/(\d+)(?:\?|$)")
_CONTENT = ("schemaType", "schema", "references", "metadata", "ruleSet")


@dataclass
class GuidStub:
    """The stub.

    Attributes:
        registry: URL of the real registry.
        url: URL of the stub.
        ids: The real registry's ids by GUID, for schemas that were requested.
        looked_up: GUIDs in the order in which they were requested.
    """

    registry: str
    url: str = ""
    ids: dict[str, int] = field(default_factory=dict)
    looked_up: list[str] = field(default_factory=list)

    def answer(self, request: Request) -> None:
        """Answers a lookup by GUID, or forwards the request."""
        wanted = _GUID.search(request.path)
        found = self._look_up(wanted[1]) if wanted else self._passed_on(request)
        request.reply(*found, "application/vnd.schemaregistry.v1+json")

    def _look_up(self, guid: str) -> tuple[int, Any]:
        self.looked_up.append(guid)
        if guid not in self.ids:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        # Confluent's registry returns no id here.
        return 200, {**self._content(self.ids[guid]), "guid": guid}

    def _passed_on(self, request: Request) -> tuple[int, Any]:
        headers = {"content-type": request.headers.get("content-type", "application/json")}
        found = self._send(request.command, request.path, request.body, headers)
        status, body = found
        by_id = _ID.search(request.path)
        if status == 200 and isinstance(body, dict) and (by_id or isinstance(body.get("id"), int)):
            number = int(by_id[1]) if by_id else body["id"]
            guid = _guid(self._content(number))
            self.ids[guid] = number
            body["guid"] = guid
        return found

    def _content(self, number: int) -> dict[str, Any]:
        path = f"{urlsplit(self.registry).path}/schemas/ids/{number}"
        status, body = self._send("GET", path, b"", {})
        assert status == 200, body
        return {name: body[name] for name in _CONTENT if body.get(name)}

    def _send(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, Any]:
        connection = HTTPConnection(urlsplit(self.registry).netloc, timeout=30)
        try:
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"null")
        finally:
            connection.close()


def _guid(content: dict[str, Any]) -> str:
    """Derives a GUID only from the schema's content, so that it is the same in all registries."""
    text = json.dumps({"schemaType": "AVRO", **content}, sort_keys=True)
    return str(uuid.UUID(bytes=hashlib.sha256(text.encode()).digest()[:16]))


@contextmanager
def guid_stub(registry: str) -> Iterator[GuidStub]:
    """Runs a stub on 127.0.0.1 in front of the registry with this URL."""
    stub = GuidStub(registry)
    with http_server(stub.answer) as url:
        stub.url = url.rpartition("/")[0] + urlsplit(registry).path
        yield stub
