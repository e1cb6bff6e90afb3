"""A time limit for a whole call; a socket's timeout restarts with each byte that arrives."""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def within(seconds: float, call: Callable[[], Answer], name: str) -> Answer:
    """Run a call in a thread and return its result; raise TimeoutError when time is up."""
    answer: concurrent.futures.Future[Answer] = concurrent.futures.Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            answer.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        return answer.result(seconds)
    except concurrent.futures.TimeoutError:
        if answer.done():
            return answer.result()  # The result came just in time, or the error is the call's own.
        raise TimeoutError(f"no complete answer within {seconds:.3g} s") from None
