"""A staged query's run without Spark: the driver and its tasks, with copies in memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from spark_eos._batch_report import BatchReport
from spark_eos._delivery.staged import StagedDelivery
from spark_eos._exactly_once import task
from spark_eos._exactly_once.delivery import Batch, PlannedBatch
from spark_eos._kafka.progress_topic import first_position
from spark_eos._kafka.stored_text import StagedBatch
from spark_eos._worker.plan import BatchPlan, BatchRange, Partitions
from spark_eos._worker.task_report import JobOutcome
from spark_eos.options import ProgressTopic
from support.flow import Flow
from support.runs import Checkpoint, Disturbance, Query, Runs, nothing, positions, running
from support.writing import outcome_of, row_batch


@dataclass
class Copies:
    """Copies that outlive their runs, like files; each has one row more than the previous copy.

    The number of rows shows which of a batch's two copies was written.
    """

    # Number of rows in each file, by the copy's name.
    rows: dict[str, list[int]] = field(default_factory=dict)
    drained: int = 0  # How often a frame was run only for its state.
    # Called when a copy is staged but not yet in the staged commit.
    while_staged: Disturbance = nothing
    while_drained: Disturbance = nothing  # Called while a frame is run for its state.
    rows_less: int = 0  # Number of the copy's rows that the frame then lacks.
    opened: StagedBatch | None = None
    listed: set[str] = field(default_factory=set)
    empty: bool = False

    def take(self, frame: Any) -> None:
        """Does nothing: a frame is not needed."""

    def close(self) -> None:
        """Does nothing: nothing is open."""

    def stage(self, batch_id: int, files: int) -> tuple[str, int]:
        name = f"{batch_id}-{len(self.rows):08x}"
        each = 0 if self.empty else 3 + len(self.rows)
        self.rows[name] = [each] * files
        self.while_staged()
        return name, each * files

    def replay(self) -> int:
        self.while_drained()
        self.drained += 1
        assert self.opened is not None
        return self.opened.rows - self.rows_less

    def open(self, copy: StagedBatch) -> bool:
        self.opened = copy
        return copy.directory is None or copy.directory in self.rows

    def list_copies(self) -> None:
        self.listed = set(self.rows)

    def remove_abandoned(self, batch_id: int, committed: str | None) -> None:
        for name in self.listed - {committed}:
            if int(name.partition("-")[0]) == batch_id:
                self.rows[name] = []

    def remove_old(self, batch_id: int) -> None:
        for name in [name for name in self.rows if int(name.partition("-")[0]) < batch_id]:
            self.rows[name] = []


@dataclass
class StagedRuns(Runs):
    """Writes staged batches; each row's value is its file and its position in the file."""

    copies: Copies
    topic: str

    def publish(self, *ranges: BatchRange) -> None:
        """Publishes positions as the run does after each batch."""
        delivery = self.run._delivery
        assert isinstance(delivery, StagedDelivery)
        delivery._positions.publish(self.topic, ranges)

    def batch(  # type: ignore[override]
        self,
        *,
        while_planned: Disturbance = nothing,
        buckets_read: Callable[[int], bool] = lambda _: True,
        finish: bool = True,
    ) -> BatchReport:
        batch_id = self.checkpoint.next_batch
        self.checkpoint.begin(positions(self.flow, (batch_id,) * self.flow.partitions), batch_id)
        first = True

        def job(
            planned: PlannedBatch, batch_plan: BatchPlan, only: Partitions | None
        ) -> JobOutcome:
            nonlocal first
            if first:
                first = False
                while_planned()
            assert self.copies.opened is not None
            assert self.copies.opened.directory is not None
            work = task.write_task(
                planned.settings,
                batch_plan,
                size=planned.size,
                discard_producer=only is not None,
            )
            reports = []
            for file, rows in enumerate(self.copies.rows[self.copies.opened.directory], start=1):
                wanted = only is None or (self.topic, file) in only
                if wanted and buckets_read(file):
                    start = first_position(batch_id)
                    found = row_batch(
                        self.flow, file, *range(start, start + rows), source_topic=self.topic
                    )
                    reports += list(work(iter([found])))
            return outcome_of(reports)

        report = self.run.write(Batch(batch_id, job, self.log))
        if finish:
            self.checkpoint.finish(batch_id)
        return report

    def written(self, *copies: str) -> None:
        """Checks that the output has each row of these copies once, and nothing else."""
        expected = [
            f"{file}/{first_position(int(name.partition('-')[0])) + row}"
            for name, rows in ((name, self.sizes[name]) for name in copies)
            for file, number in enumerate(rows, start=1)
            for row in range(number)
        ]
        assert sorted(self.flow.values()) == sorted(expected)
        assert self.flow.open_transactions() == []

    def written_once(self, *_: int) -> None:
        """Checks that the output has each row of all copies once, and nothing else."""
        self.written(*self.copies.rows)

    @property
    def sizes(self) -> dict[str, list[int]]:
        """The number of rows in each file of each copy, including copies that were swept."""
        files = max(len(rows) for rows in self.copies.rows.values())
        return {name: [3 + n] * files for n, name in enumerate(self.copies.rows)}


@contextmanager
def staged_run(
    flow: Flow,
    *,
    checkpoint: Checkpoint | None = None,
    copies: Copies | None = None,
    **options: Any,
) -> Iterator[StagedRuns]:
    topic = progress_topic(flow)
    kept = Copies() if copies is None else copies
    delivery = partial(StagedDelivery, files=kept, read_by_others=lambda _: set())
    own = {"delivery": delivery, "progress_topic": ProgressTopic(topic), "prepared": False}
    options = {**own, **options}
    with running(flow, checkpoint=checkpoint, **options) as runs:
        yield StagedRuns(**vars(runs), copies=kept, topic=topic)


def progress_topic(flow: Flow) -> str:
    return f"progress-{flow.name}"


@dataclass
class StagedQuery(Query):
    """A query whose copies outlive its runs, as its checkpoint does."""

    copies: Copies = field(default_factory=Copies)

    @contextmanager
    def run(self, **options: Any) -> Iterator[StagedRuns]:
        """See `Query`."""
        with super().run(copies=self.copies, **options) as runs:
            yield runs


def staged_query(flow: Flow, files: int = 2) -> StagedQuery:
    """A query that stages its batches, with a new progress topic for this many files."""
    topic = progress_topic(flow)
    flow.broker.create_topic(topic, files + 1)
    return StagedQuery(flow, partial(staged_run, flow), topic, before=((), ()), after=())
