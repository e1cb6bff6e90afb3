"""A steady load for a query."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import Producer

from support.flow import Flow

_RECORDS: Final = 100
_SECONDS: Final = 0.5


@contextmanager
def loaded(flow: Flow) -> Iterator[list[int]]:
    """Produces until the block ends; each record's key is its number. Yields the count."""
    produced, stop = [0], threading.Event()
    # Else a retry, after a broker has restarted, may write records twice.
    producer = Producer({"bootstrap.servers": flow.source_servers, "enable.idempotence": True})

    def produce() -> None:
        while not stop.wait(_SECONDS):
            numbers = range(produced[0], produced[0] + _RECORDS)
            for number in numbers:
                text = b"%d" % number
                producer.produce(flow.source, text, text, number % flow.partitions)
            assert producer.flush(120) == 0
            produced[0] = numbers.stop

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield produced
    finally:
        stop.set()
        thread.join()
