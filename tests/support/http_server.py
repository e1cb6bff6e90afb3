"""A test's own HTTP server."""

import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Request(BaseHTTPRequestHandler):
    """A request, with methods that answer it."""

    body: bytes  # the request's body

    def __init__(self, answer: "Answer", *arguments: Any) -> None:
        self._answer = answer
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer(self)

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - http.server's names

    def reply(self, status: int, body: Any, kind: str = "application/json") -> None:
        """Sends bytes unchanged and anything else as JSON."""
        encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, *_: object) -> None:
        pass


Answer = Callable[[Request], None]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        # The client may disconnect.
        if not isinstance(sys.exc_info()[1], ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


@contextmanager
def http_server(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serves every path on 127.0.0.1, each request in a thread; yields its URL."""
    with _Server(("127.0.0.1", 0), partial(Request, answer)) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            scheme = "http" if tls is None else "https"
            yield f"{scheme}://127.0.0.1:{server.server_port}/token"
        finally:
            server.shutdown()
            thread.join()
