"""Quix Streams with exactly-once; runs in its own virtual environment.

Arguments: servers, source, target, rows and partitions. Prints wall-clock and CPU seconds.
"""

import json
import sys
import time
from typing import Any

from quixstreams import Application


def main() -> None:
    """Run Quix Streams in one process with default settings, except for the guarantee."""
    servers, source, target, rows, _partitions = sys.argv[1:]
    application = Application(
        broker_address=servers,
        consumer_group=target,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        loglevel="ERROR",
    )
    began: list[float] = []

    def note(value: Any) -> Any:
        if not began:
            began.append(time.monotonic())
        return value

    read = application.topic(source, value_deserializer="bytes", key_deserializer="bytes")
    written = application.topic(target, value_serializer="bytes", key_serializer="bytes")
    application.dataframe(read).apply(note).to_topic(written)
    application.run(count=int(rows))
    seconds = {"seconds": time.monotonic() - began[0], "cpu_seconds": time.process_time()}
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
