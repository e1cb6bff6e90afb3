"""A time limit for a whole call: that of a socket begins anew with each byte that arrives."""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def within(seconds: float, call: Callable[[], Answer], name: str) -> Answer:
    """Returns what a call returns in a thread of that name; raises TimeoutError after a time."""
    answer: concurrent.futures.Future[Answer] = concurrent.futures.Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            answer.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        return answer.result(seconds)
    except concurrent.futures.TimeoutError:
        if answer.done():
            return answer.result()  # Or it is the call's own error.
        raise TimeoutError(f"no complete answer within {seconds:.3g} s") from None
