"""A query's run without Spark: its batches, and their tasks, in this process on a real broker."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from spark_eos import task
from spark_eos.batch_report import BatchReport
from spark_eos.checkpoint import OffsetLog
from spark_eos.plan import BatchPlan, BatchRange
from spark_eos.report import JobOutcome, job_outcome
from spark_eos.run import Partitions, QueryRun
from spark_eos.settings import WriterSettings
from support.flow import Flow
from support.members import writer_settings
from support.writing import row_batch


class _Checkpoint(dict[str, str]):
    def read(self, path: str) -> str | None:
        return self.get(path)

    def names(self, path: str) -> list[str]:
        return sorted({name.split("/")[1] for name in self if name.startswith(f"{path}/")})


@dataclass
class DirectRun:
    """A run, and the batches it has been given; rows are made up from their offsets.

    ``before_job`` is called when a round's members are planned and nothing is written yet.
    """

    flow: Flow
    run: QueryRun
    checkpoint: dict[str, str]
    before_job: Callable[[], None] = lambda: None
    ends: dict[int, int] = field(default_factory=dict)
    batch_id: int = -1

    def batch(self, rows: Mapping[int, int], without_output: int = 0) -> BatchReport:
        """Processes the next batch.

        Args:
            rows: how many rows it has, by source partition.
            without_output: so many of each partition's last rows have no output.
        """
        self.batch_id += 1
        self.ends = {p: self.ends.get(p, 0) + rows.get(p, 0) for p in range(self.flow.partitions)}
        self.checkpoint[f"offsets/{self.batch_id}"] = self._entry(self.ends)

        def job(
            settings: WriterSettings,
            batch: BatchRange,
            batch_plan: BatchPlan,
            only: Partitions | None,
        ) -> JobOutcome:
            self.before_job()
            batches = [
                row_batch(self.flow, p, *range(batch.starts[topic, p], end - without_output))
                for (topic, p), end in batch.ends.items()
                if only is None or (topic, p) in only
            ]
            reports = task.write_task(settings, batch_plan)(b for b in batches if b.num_rows)
            return job_outcome(row for report in reports for row in report.to_pylist())

        return self.run.process(self.batch_id, job)

    def _entry(self, offsets: Mapping[int, int]) -> str:
        return "v1\n{}\n" + json.dumps({self.flow.source: {str(p): o for p, o in offsets.items()}})


@contextmanager
def direct_run(flow: Flow, rounds: int = 4) -> Iterator[DirectRun]:
    """A run of the flow's group with one member, ended cleanly afterwards."""
    files = _Checkpoint()
    settings = writer_settings(flow)
    with flow.wire() as wire:
        run = QueryRun(
            "",
            wire,
            settings,
            OffsetLog(files),
            most_members=1,
            most_rounds=rounds,
            group_timeout=20,
            watch=lambda: True,
        )
        found = DirectRun(flow, run, files)
        zero = json.dumps({flow.source: {str(p): 0 for p in range(flow.partitions)}})
        files["sources/0/0"] = f"v1\n{zero}"
        try:
            yield found
        finally:
            run.leave()
            task._worker_producer(settings).close()
            task._producers.clear()
