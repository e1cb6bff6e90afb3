"""Another application's consumer in a flow's group, in its own process.

It polls like a service. Killing the process also ends a `close()` that never returns, as happened
once in librdkafka while the group was being rebalanced.
"""

import json
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from support.flow import Flow
from support.queries import until

CLIENT_ID = "somebody-else"


@contextmanager
def foreign_consumer(
    flow: Flow,
    protocol: str = "consumer",
    *,
    client_id: str = CLIENT_ID,
    topic: str | None = None,
    offsets: Mapping[int, int] | None = None,
) -> Iterator[None]:
    """Starts the consumer, and waits until it has joined; at the end, it leaves or expires.

    ``topic`` is the source topic by default.
    """
    settings = {
        **flow.kafka,
        "group.id": flow.group_id,
        "group.protocol": protocol,
        "client.id": client_id,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    given = json.dumps([settings, topic or flow.source, list((offsets or {}).items())])
    command = [sys.executable, "-m", "support.foreign_consumer", given]

    def is_member() -> bool:
        return client_id in {member.client_id for member in flow.members()}

    def joined() -> bool:
        assert process.poll() is None, f"it has ended with {process.returncode}"
        return is_member()

    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            until(joined, lambda: "the consumer to join")
            if offsets:
                until(lambda: flow.committed().items() >= offsets.items(), lambda: "its offsets")
            yield
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=30)
        finally:
            process.kill()
    until(lambda: not is_member(), lambda: "it to leave")


def _main(settings: dict[str, Any], topic: str, offsets: list[tuple[int, int]]) -> None:
    wanted = [TopicPartition(topic, *offset) for offset in offsets]
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([topic])
        # Wait until the other end of the pipe is closed.
        while not select.select([sys.stdin], [], [], 0)[0]:
            consumer.poll(0.05)
            if wanted and consumer.assignment():
                consumer.commit(offsets=wanted, asynchronous=False)
                wanted = []


if __name__ == "__main__":
    _main(*json.loads(sys.argv[1]))
