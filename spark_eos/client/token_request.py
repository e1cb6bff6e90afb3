"""One request to a token endpoint: to it alone, with an end in time and in size."""

import concurrent.futures
import ssl
import threading
import urllib.request
from typing import Any, Final

_MOST_BYTES: Final = 1 << 20


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Python would send the Authorization header along, to whatever host."""

    def redirect_request(self, *_arguments: Any, **_named: Any) -> None:
        """Not followed; so it is an `urllib.error.HTTPError`."""


def answer_to(request: urllib.request.Request, context: ssl.SSLContext, seconds: float) -> bytes:
    """The body of the answer.

    Args:
        request: What to send.
        context: For https.
        seconds: For all of it, the look-up of the host's name included.

    Raises:
        OSError: There is no answer in time, or it is an HTTP error or a redirect.
        ValueError: The answer has no end.
    """
    found: concurrent.futures.Future[bytes] = concurrent.futures.Future()

    def ask() -> None:
        try:
            found.set_result(_body(request, context, seconds))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            found.set_exception(error)

    # A server that sends a byte now and then never exceeds a socket's time limit.
    threading.Thread(target=ask, name="token-request", daemon=True).start()
    try:
        return found.result(seconds)
    except concurrent.futures.TimeoutError:
        raise TimeoutError(f"no whole answer within {seconds:g} s") from None


def _body(request: urllib.request.Request, context: ssl.SSLContext, seconds: float) -> bytes:
    opener = urllib.request.build_opener(
        _NoRedirects(), urllib.request.HTTPSHandler(context=context)
    )
    with opener.open(request, timeout=seconds) as answer:
        body: bytes = answer.read(_MOST_BYTES + 1)
    if len(body) > _MOST_BYTES:
        raise ValueError(f"the answer is longer than {_MOST_BYTES} bytes")
    return body
