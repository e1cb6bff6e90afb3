"""A consume-transform-produce loop with transactions, as in confluent-kafka's documentation.

Arguments: servers, source, target, rows and partitions. Prints wall-clock and CPU seconds.
"""

import json
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

_AT_ONCE = 10_000


def main() -> None:
    """Run one transaction per batch of messages, in a single process."""
    servers, source, target, rows, partitions = sys.argv[1:]
    common = {"bootstrap.servers": servers}
    consumer = Consumer(
        {
            **common,
            "group.id": target,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    producer = Producer({**common, "transactional.id": target})
    producer.init_transactions()
    consumer.assign([TopicPartition(source, p, 0) for p in range(int(partitions))])
    done, started, total = 0, 0.0, int(rows)
    while done < total:
        messages = consumer.consume(min(_AT_ONCE, total - done), timeout=1.0)
        if not messages:
            continue
        started = started or time.monotonic()
        producer.begin_transaction()
        for message in messages:
            while True:
                try:
                    producer.produce(target, message.value(), message.key())
                    break
                except BufferError:
                    producer.poll(0.05)
            producer.poll(0)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
        )
        producer.commit_transaction()
        done += len(messages)
    seconds = {"seconds": time.monotonic() - started, "cpu_seconds": time.process_time()}
    print(json.dumps(seconds))
    consumer.close()


if __name__ == "__main__":
    main()
