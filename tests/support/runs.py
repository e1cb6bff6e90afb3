"""A query's run without Spark: the driver's side and its tasks, with rows made up by the test."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from spark_eos import task
from spark_eos.batch_report import BatchReport
from spark_eos.checkpoint import OffsetLog
from spark_eos.errors import OffsetsLostError
from spark_eos.plan import BatchPlan, BatchRange
from spark_eos.report import JobOutcome, job_outcome
from spark_eos.run import Partitions, QueryRun
from spark_eos.settings import WriterSettings
from support.flow import Flow
from support.members import writer_settings
from support.writing import row_batch

Disturbance = Callable[[], None]


def _nothing() -> None:
    pass


class _Checkpoint(dict[str, str]):
    def read(self, path: str) -> str | None:
        return self.get(path)

    def names(self, path: str) -> list[str]:
        return sorted({name.split("/")[1] for name in self if name.startswith(f"{path}/")})


@dataclass
class Runs:
    """Writes batches of a flow's source; nothing is read from the topic.

    Each row's value is its partition and offset.
    """

    flow: Flow
    run: QueryRun
    _files: _Checkpoint
    _batch_id: int = -1

    @property
    def coordinator_changed(self) -> bool:
        """Whether the run has noticed that the group is not as it left it."""
        return self.run._coordinator.changed

    @property
    def foreign_member_seen(self) -> bool:
        """Whether a heartbeat has found somebody else's consumer in the group."""
        return self.run._coordinator._foreign is not None

    def batch(
        self,
        *ends: int,
        without_output: int = 0,
        while_planned: Disturbance = _nothing,
        in_round: int = 1,
    ) -> BatchReport:
        """Writes the next batch.

        Args:
            ends: end offsets, by partition.
            without_output: so many of each partition's last rows have no output.
            while_planned: what happens once the tasks have their plan, before they write.
            in_round: the round in which it happens.
        """
        self._batch_id += 1
        self._files[f"offsets/{self._batch_id}"] = f"v1\n{{}}\n{positions(self.flow, ends)}"
        rounds = iter(range(1, 100))

        def job(
            settings: WriterSettings,
            batch: BatchRange,
            batch_plan: BatchPlan,
            only: Partitions | None,
        ) -> JobOutcome:
            if next(rounds) == in_round:
                while_planned()
            work = task.write_task(settings, batch_plan, afresh=only is not None)
            reports = []
            # A task for each source partition, as Spark has it.
            for topic, partition in batch.ends if only is None else only:
                start = batch.starts.get((topic, partition), 0)
                offsets = range(start, batch.ends[topic, partition] - without_output)
                if offsets:
                    reports += list(work(iter([row_batch(self.flow, partition, *offsets)])))
            return job_outcome(row for report in reports for row in report.to_pylist())

        return self.run.process(self._batch_id, job)

    def written_once(self, *ends: int) -> None:
        """Checks that each row up to the ends is in the output once, and committed."""
        expected = sorted(f"{p}/{offset}" for p, end in enumerate(ends) for offset in range(end))
        assert sorted(self.flow.values()) == expected
        assert self.flow.committed() == dict(enumerate(ends))
        assert self.flow.open_transactions() == []


def positions(flow: Flow, offsets: tuple[int, ...]) -> str:
    """Offsets as Spark writes them into a checkpoint, by partition."""
    return json.dumps({flow.source: {str(p): offset for p, offset in enumerate(offsets)}})


@contextmanager
def running(flow: Flow, members: int = 1, **options: Any) -> Iterator[Runs]:
    """A run that ends with the block; ``options`` replace fields of the writer's settings."""
    initial = f"v1\n{positions(flow, (0,) * flow.partitions)}"
    files = _Checkpoint({"metadata": '{"id": "query"}', "sources/0/0": initial})
    with flow.wire() as wire:
        run = QueryRun(
            "",
            wire,
            replace(writer_settings(flow), **options),
            OffsetLog(files),
            most_members=members,
            most_rounds=4,
            group_timeout=20,
            watch=lambda: True,
        )
        try:
            yield Runs(flow, run, files)
        finally:
            run.leave()
            close_producers()


def close_producers() -> None:
    """Ends the producers that tasks have left in this process, as a worker does when it ends."""
    for producer in task._producers.values():
        producer.close()
    task._producers.clear()


def settles_nothing_of_a_recreated_source(flow: Flow, when: str) -> None:
    """Checks that the driver commits no end of the old topic to the new one.

    Args:
        flow: its source is deleted and created anew.
        when: "during the job", or else between batches.
    """

    def recreate() -> None:
        flow.recreate(flow.source)

    with running(flow) as runs:
        runs.batch(10, 10, without_output=10)
        assert flow.committed() == {0: 10, 1: 10}
        if when != "during the job":
            recreate()
        then = recreate if when == "during the job" else _nothing
        with pytest.raises(OffsetsLostError, match=f"'{flow.source}' was deleted and created anew"):
            runs.batch(20, 20, without_output=10, while_planned=then)
    assert flow.committed() == {}
