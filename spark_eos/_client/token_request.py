"""A request to a token endpoint: no redirects, limited in time and size."""

import concurrent.futures
import ssl
import threading
import urllib.error
import urllib.request
from typing import Any, Final

_MAX_BYTES: Final = 1 << 20


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, since Python would send the Authorization header to any host."""

    def redirect_request(self, *_arguments: Any, **_named: Any) -> None:
        """Follows no redirect, so `urllib.request` raises an `urllib.error.HTTPError`."""


def answer_to(request: urllib.request.Request, context: ssl.SSLContext, seconds: float) -> bytes:
    """Sends a request and returns the body of the answer."""
    found: concurrent.futures.Future[bytes] = concurrent.futures.Future()

    def ask() -> None:
        try:
            found.set_result(_body(request, context, seconds))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            found.set_exception(error)

    # A server that sends one byte now and then never exceeds a socket's timeout.
    threading.Thread(target=ask, name="token-request", daemon=True).start()
    try:
        return found.result(seconds)
    except concurrent.futures.TimeoutError:
        raise TimeoutError(f"no complete answer within {seconds:g} s") from None


def _body(request: urllib.request.Request, context: ssl.SSLContext, seconds: float) -> bytes:
    handlers = [_NoRedirects(), urllib.request.HTTPSHandler(context=context)]
    if request.type == "http":
        # A proxy would read the client secret; through one, https is a tunnel.
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(request, timeout=seconds) as answer:
            body: bytes = answer.read(_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()  # It holds the connection.
        raise
    if len(body) > _MAX_BYTES:
        raise ValueError(f"the answer is longer than {_MAX_BYTES} bytes")
    return body
