"""A transactional producer with rows from memory: as fast as librdkafka writes from Python.

Takes servers, target, rows and bytes of a value; prints rows per second.
"""

import json
import sys
import time

from confluent_kafka import Producer

_OF_A_TRANSACTION = 100_000


def main() -> None:
    """One process, one large transaction after another."""
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
    for first in range(0, total, _OF_A_TRANSACTION):
        producer.begin_transaction()
        for number in range(first, min(total, first + _OF_A_TRANSACTION)):
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
