"""Yields a task's rows as they arrive, and calls back while the next row is late."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def arrivals(
    items: Iterator[_Item],
    is_late: Callable[[], bool],
    on_late: Callable[[], None],
    every: float,
    note_wait: Callable[[float], None],
) -> Iterator[_Item]:
    """Yield the items in order, and call back while the next one is late."""
    # The caller's own thread reads the items: passing an item between threads takes as long as
    # writing a thousand rows. A second thread watches the clock, but only while the caller waits
    # for an item.
    watch = _Watch(is_late, on_late, every)
    thread = threading.Thread(target=watch.run, name="spark-eos-rows", daemon=True)
    thread.start()
    try:
        while True:
            began = time.monotonic()
            with watch.waiting():
                item = next(items, None)
            # Don't count the seconds spent in `on_late`.
            note_wait(time.monotonic() - began - watch.callback_seconds)
            if watch.failure is not None:
                raise watch.failure
            if item is None:
                return
            yield item
    finally:
        watch.over.set()


class _Watch:
    def __init__(self, is_late: Callable[[], bool], on_late: Callable[[], None], every: float):
        self.over = threading.Event()
        self.failure: BaseException | None = None
        # Seconds that `on_late` has taken during the caller's current wait.
        self.callback_seconds = 0.0
        self._is_late = is_late
        self._on_late = on_late
        self._every = every
        self._lock = threading.Lock()
        self._waits = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        with self._lock:
            self._waits, self.callback_seconds = True, 0.0
        try:
            yield
        finally:
            # If an item arrives during on_late, the caller waits until on_late returns.
            with self._lock:
                self._waits = False

    def run(self) -> None:
        while not self.over.wait(self._every):
            with self._lock:
                if self._waits and self._is_late():
                    began = time.monotonic()
                    try:
                        self._on_late()
                    except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                        self.failure = error
                        return
                    self.callback_seconds += time.monotonic() - began
