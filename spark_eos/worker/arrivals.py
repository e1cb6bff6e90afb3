"""A task's rows as they come, with something to do while they are long in coming."""

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def arrivals(
    items: Iterator[_Item], is_late: Callable[[], bool], on_late: Callable[[], None], every: float
) -> Iterator[_Item]:
    """The items, none of which is None, in their order.

    They are read on the caller's thread, since handing each from thread to thread takes as long as
    writing a thousand rows. Only while the caller waits for one, another thread looks at the clock.

    Args:
        items: where they come from.
        is_late: whether the wait for an item has become too long.
        on_late: called then, on the other thread; what it raises is raised to the caller when the
            item has come.
        every: seconds between two looks.
    """
    watch = _Watch(is_late, on_late, every)
    thread = threading.Thread(target=watch.run, name="spark-eos-rows", daemon=True)
    thread.start()
    try:
        while True:
            watch.begin()
            try:
                item = next(items, None)
            finally:
                watch.end()
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
        self._is_late = is_late
        self._on_late = on_late
        self._every = every
        self._lock = threading.Lock()
        self._waits = False

    def begin(self) -> None:
        with self._lock:
            self._waits = True

    def end(self) -> None:
        # Who comes back meanwhile waits for what is being done.
        with self._lock:
            self._waits = False

    def run(self) -> None:
        while not self.over.wait(self._every):
            with self._lock:
                if self._waits and self._is_late():
                    try:
                        self._on_late()
                    except BaseException as error:  # noqa: BLE001 - raised to the caller
                        self.failure = error
                        return
