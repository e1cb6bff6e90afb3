"""A steady load for a query."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from support.flow import Flow

_RECORDS: Final = 100
_SECONDS: Final = 0.5


@contextmanager
def loaded(flow: Flow) -> Iterator[list[int]]:
    """Produces until the block ends; each record's key is its number. Yields the count."""
    produced, stop = [0], threading.Event()

    def produce() -> None:
        while not stop.wait(_SECONDS):
            numbers = range(produced[0], produced[0] + _RECORDS)
            flow.produce(numbers, key=lambda number: b"%d" % number)
            produced[0] = numbers.stop

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield produced
    finally:
        stop.set()
        thread.join()
