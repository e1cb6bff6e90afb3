"""A transactional producer with rows from memory: the fastest that librdkafka writes from Python.

Arguments: servers, target, rows and bytes of a value. Prints rows per second.
"""

import json
import sys
import time

from confluent_kafka import Producer

_ROWS_PER_TRANSACTION = 100_000


def main() -> None:
    """Run one large transaction after another in one process."""
    servers, target, rows, size = sys.argv[1:]
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": target,
            "queue.buffering.max.messages": 500_000,
            "linger.ms": 5,
        }
    )
    producer.init_transactions()
    value, total = b"x" * int(size), int(rows)
    started = time.monotonic()
    for first in range(0, total, _ROWS_PER_TRANSACTION):
        producer.begin_transaction()
        for number in range(first, min(total, first + _ROWS_PER_TRANSACTION)):
            while True:
                try:
                    producer.produce(target, value, b"%08d" % number)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.commit_transaction()
    print(json.dumps({"rows_per_second": total / (time.monotonic() - started)}))


if __name__ == "__main__":
    main()
