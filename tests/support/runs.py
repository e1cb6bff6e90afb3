"""A query's run without Spark: the driver's side and a task's, with rows made up by the test."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spark_eos import task
from spark_eos.batch_report import BatchReport
from spark_eos.checkpoint import OffsetLog
from spark_eos.config import ClientSettings
from spark_eos.plan import BatchPlan, BatchRange
from spark_eos.report import JobOutcome, job_outcome
from spark_eos.run import Partitions, QueryRun
from spark_eos.settings import WriterSettings
from spark_eos.wire import Wire
from support.flow import Flow
from support.members import writer_settings
from support.writing import rows

Disturbance = Callable[[], None]


class _Log(dict[str, str]):
    def read(self, path: str) -> str | None:
        return self.get(path)

    def names(self, path: str) -> list[str]:
        return sorted({name.split("/")[1] for name in self if name.startswith(f"{path}/")})


class Runs:
    """Writes batches of a flow's source; each row's value is its partition and offset.

    Args:
        flow: topics and group; nothing is read from the source topic.
        members: at most so many group members.
    """

    def __init__(self, flow: Flow, members: int = 64) -> None:
        self._flow = flow
        self._log = _Log({"sources/0/0": f"\x00v1\n{json.dumps({flow.source: {}})}"})
        self._batch_id = 0
        self.run = QueryRun(
            "",
            Wire(ClientSettings(flow.kafka)),
            writer_settings(flow),
            OffsetLog(self._log),
            most_members=members,
            most_rounds=4,
            group_timeout=20,
            watch=lambda: True,
        )

    @property
    def coordinator_changed(self) -> bool:
        """Whether the run has noticed that the group is not as it left it."""
        return self.run._coordinator.changed

    @property
    def foreign_member_seen(self) -> bool:
        """Whether a heartbeat has found somebody else's consumer in the group."""
        return self.run._coordinator._foreign is not None

    def batch(self, *ends: int, while_planned: Disturbance | None = None) -> BatchReport:
        """Writes the next batch, up to an end offset for each partition.

        Args:
            ends: end offsets, by partition.
            while_planned: what happens once the tasks have their first plan, before they write.
        """
        positions = {self._flow.source: {str(p): end for p, end in enumerate(ends)}}
        batch_id, self._batch_id = self._batch_id, self._batch_id + 1
        self._log[f"offsets/{batch_id}"] = f"v1\n{{}}\n{json.dumps(positions)}"
        disturbances = [while_planned] if while_planned is not None else []

        def job(
            settings: WriterSettings,
            batch: BatchRange,
            batch_plan: BatchPlan,
            only: Partitions | None,
        ) -> JobOutcome:
            if disturbances:
                disturbances.pop()()
            work = task.write_task(settings, batch_plan)
            reports = []
            # A task for each source partition, as Spark has it.
            for topic, partition in batch.ends if only is None else only:
                offsets = range(
                    batch.starts.get((topic, partition), 0), batch.ends[topic, partition]
                )
                if offsets:
                    reports += list(work(iter([rows(self._flow, partition, *offsets).rows])))
            return job_outcome(row for report in reports for row in report.to_pylist())

        return self.run.process(batch_id, job)

    def written_once(self, *ends: int) -> None:
        """Checks that each row up to the ends is in the output once, and committed."""
        expected = sorted(f"{p}/{offset}" for p, end in enumerate(ends) for offset in range(end))
        assert sorted(self._flow.values()) == expected
        assert self._flow.committed() == dict(enumerate(ends))
        assert self._flow.open_transactions() == []


@contextmanager
def running(flow: Flow, members: int = 64) -> Iterator[Runs]:
    """A run that ends with the block."""
    runs = Runs(flow, members)
    try:
        yield runs
    finally:
        runs.run.leave()
        close_producers()


def close_producers() -> None:
    """Ends the producers that tasks have left in this process, as a worker does when it ends."""
    for producer in task._producers.values():
        producer.close()
    task._producers.clear()
