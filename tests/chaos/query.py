"""The query under test, in a process of its own; its settings are JSON in the first argument.

Runs until it fails, until it has read everything (``drain``), or is killed. A file ``restart``
in the control directory makes it stop the query and start it again at once. Prints when a query
has started, by the monotonic clock, which all processes of a machine share.
"""

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from chaos.loads import LOADS, transformed
from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos.testing import spark_session


def _print_report(report: BatchReport) -> None:
    fields = dataclasses.asdict(report)
    fields.pop("partitions")
    print("REPORT", json.dumps(fields), flush=True)


def main() -> None:
    """See above."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    load = LOADS[settings["load"]]
    control = Path(settings["control"])
    spark = spark_session(master=settings["master"], config=settings["config"], quick_start=True)
    sink = ExactlyOnceSink(**load.options, **settings["sink"], on_batch=_print_report)
    frame = sink.read(
        spark,
        subscribe=",".join(settings["sources"]),
        options={"maxOffsetsPerTrigger": str(settings["max_offsets"])},
    )
    writer = sink.write(transformed(load, frame, settings["targets"], control))
    writer = writer.trigger(availableNow=True) if settings["drain"] else writer
    restart = control / "restart"
    parent = os.getppid()
    while True:
        query = writer.start()
        print(f"STARTED {time.monotonic():.3f}", flush=True)
        while query.isActive and not restart.exists():
            time.sleep(0.02)
            if os.getppid() != parent:
                os._exit(3)  # the harness is gone, and nobody will end this query
        if query.isActive:
            restart.unlink()
            query.stop()
            continue
        query.awaitTermination()
        print("DONE", flush=True)
        return


if __name__ == "__main__":
    main()
