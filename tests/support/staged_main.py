"""A staged query for `support.queries.QueryProcess`; its settings are JSON in the first argument.

Settings besides those of ExactlyOnceSink: ``source``; ``pipeline`` (a name in `support.staging`);
``mode`` (the output mode); ``config`` (of the session); ``max_offsets``; ``shuffle_partitions``;
``kill`` (a point, a batch, and a signal, by default SIGKILL, for the process and all its children
at that point).
"""

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos._delivery.staged import StagedDelivery
from spark_eos._delivery.staged_files import ParquetFiles
from spark_eos._exactly_once.offsets import GroupOffsets
from spark_eos._sink.batches import SinkRun
from spark_eos.testing import spark_session
from support import staging
from support.query_main import print_report, run_to_the_end
from support.sinks import arguments
from support.stored_files import STAGED, StoredFiles, stored_files

# Points at which the query may be killed, in the order in which a batch reaches them.
POINTS = ("staging", "staged", "staged-commit", "written", "settled")
# In the middle of the staging job, when a file of the copy is begun.
HALFWAY = "halfway"


def half_of(batch_id: int, files: StoredFiles) -> Iterator[str]:
    """Unfinished files of a batch's copy in a checkpoint."""
    # The second pattern is for an S3A committer, which completes files without renaming them.
    work = "(_temporary|__magic)"
    begun = re.compile(rf"{STAGED}/{batch_id}-[^/]+/{work}[^/]*/(.*/)?part-[^/]*\.parquet.*")
    return filter(begun.fullmatch, files.sizes(STAGED))


def _kill_at(at_point: str, at_batch: int, name: str = "SIGKILL") -> None:
    """Sends this process group a signal at a point of a batch."""

    def reached(point: str, batch_id: int) -> None:
        if (point, batch_id) == (at_point, at_batch):
            os.killpg(0, signal.Signals[name])

    stage, commit, finish, write = (
        ParquetFiles.stage,
        GroupOffsets.stage,
        StagedDelivery.check_written,
        SinkRun.write,
    )

    def halfway(self: Any, batch_id: int) -> None:
        files = stored_files(self._location)
        while not any(half_of(batch_id, files)):
            time.sleep(0.005)
        reached(HALFWAY, batch_id)

    def staged(self: Any, batch_id: int, files: int) -> tuple[str, int]:
        reached("staging", batch_id)
        if (at_point, at_batch) == (HALFWAY, batch_id):
            threading.Thread(target=halfway, args=(self, batch_id), daemon=True).start()
        found = stage(self, batch_id, files)
        reached("staged", batch_id)
        return found

    def committed(self: Any, partition: Any, files: Any) -> None:
        commit(self, partition, files)
        reached("staged-commit", files.batch)

    def finished(self: Any, planned: Any, outcomes: Any) -> Any:
        reached("written", planned.batch.id)
        return finish(self, planned, outcomes)

    def wrote(self: Any, frame: Any, batch_id: int, relation: str | None) -> BatchReport:
        report = write(self, frame, batch_id, relation)
        reached("settled", batch_id)
        return report

    ParquetFiles.stage = staged  # type: ignore[method-assign]
    GroupOffsets.stage = committed  # type: ignore[method-assign, assignment]
    StagedDelivery.check_written = finished  # type: ignore[method-assign]
    SinkRun.write = wrote  # type: ignore[method-assign]


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    source, pipeline = settings.pop("source"), settings.pop("pipeline")
    mode, offsets = settings.pop("mode", "append"), settings.pop("max_offsets", 30)
    if (kill := settings.pop("kill", None)) is not None:
        _kill_at(*kill)
    config = settings.pop("config", {})
    config["spark.sql.shuffle.partitions"] = str(settings.pop("shuffle_partitions", 3))
    config["spark.sql.execution.arrow.maxRecordsPerBatch"] = "5"
    spark = spark_session(config=config, quick_start=True)
    sink = ExactlyOnceSink(**arguments(**settings, on_batch=print_report))
    read = {"maxOffsetsPerTrigger": str(offsets)}
    frame = sink.read(spark, subscribe=source, options=read)
    writer = sink.write(getattr(staging, pipeline)(frame)).outputMode(mode)
    run_to_the_end(writer.trigger(availableNow=True))


if __name__ == "__main__":
    main()
