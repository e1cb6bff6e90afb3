"""The interface between a run and its delivery: the batch, its plan, and the methods."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from spark_eos._batch_report import LostRecords
from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._kafka.stored_text import Owner, StagedBatch
from spark_eos._kafka.topic_partition import Positions
from spark_eos._worker.plan import BatchPlan, BatchRange, Partitions
from spark_eos._worker.sources import Sources
from spark_eos._worker.task_report import JobOutcome
from spark_eos._worker.transaction_size import FULL, TransactionSize
from spark_eos._worker.writer_settings import WriterSettings


class StepClock:
    """Adds up the time spent in each step."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time the block as part of a step, even if it raises."""
        started = time.monotonic()
        try:
            yield
        finally:
            spent = (time.monotonic() - started) * 1000
            self.milliseconds[name] = self.milliseconds.get(name, 0.0) + spent


@dataclass(frozen=True)
class Batch:
    """A micro-batch from Spark."""

    id: int
    # A DataFrame. Only deliveries use it, so this module need not import its type.
    frame: Any
    checkpoint: OffsetLog
    clock: StepClock = field(default_factory=StepClock, compare=False)

    @cached_property
    def source(self) -> BatchRange:
        """The batch's range in its source partitions; not every staged batch has one."""
        return self.checkpoint.batch_range(self.id)


@dataclass(frozen=True)
class PlannedBatch:
    """A batch in terms of the group's partitions, with the group's offsets for the batch."""

    batch: Batch
    range: BatchRange
    settings: WriterSettings
    sources: Sources = field(default_factory=Sources)
    # Partitions outside the batch, whose offsets are renewed together with the batch's.
    idle: Partitions = ()
    # The committed offsets when this run began to write the batch.
    before: Positions = field(default_factory=dict)
    # The files that the rows are read from.
    staged: StagedBatch | None = None
    # True if an earlier run staged the files.
    repeated: bool = False
    # True if an earlier run wrote all rows.
    written: bool = False
    # Records that were deleted before they were read.
    lost: tuple[LostRecords, ...] = ()
    # The size with which each task's transactions begin.
    size: TransactionSize = FULL

    @property
    def partitions(self) -> Partitions:
        """The partitions whose offsets the run must hold."""
        return {*self.range.ends, *self.idle}

    @property
    def rows(self) -> int | None:
        """Number of rows to write, if they were counted."""
        if self.written:
            return 0
        return None if self.staged is None else self.staged.rows


class RunDelivery(ABC):
    """The methods that a run calls, in the order in which its first batch calls them.

    Later batches begin with `plan`. `check_group` is called again whenever the offsets have been
    read again.
    """

    # The delivery's name in checkpoints and reports.
    name: ClassVar[str]

    @abstractmethod
    def check_checkpoint(self, batch: Batch) -> None:
        """Refuse a checkpoint that was begun with another delivery."""

    @abstractmethod
    def partitions_to_fence(self, batch: Batch) -> Partitions:
        """Return the group's partitions to fence and read before the first batch is planned."""

    @abstractmethod
    def check_group(self, batch: Batch) -> None:
        """Refuse a group whose offsets belong to another delivery or query."""

    @abstractmethod
    def learn(self, batch: Batch) -> None:
        """Learn what the offsets mean, after all older runs are fenced and all offsets are read."""

    @abstractmethod
    def plan(self, batch: Batch) -> PlannedBatch:
        """Return the batch, expressed in the group's partitions."""

    @abstractmethod
    def owner(self, batch: Batch) -> Owner:
        """Return the query that owns the offsets that a batch commits."""

    @abstractmethod
    def initial_offsets(self, planned: PlannedBatch, *, begun_now: bool) -> Positions:
        """Return the first offsets of partitions that have none; refuse lost offsets."""

    @abstractmethod
    def prepare(self, planned: PlannedBatch) -> PlannedBatch:
        """Refuse ranges that would lose or repeat records, write the marker, and stage rows."""

    @abstractmethod
    def write_rows(
        self, planned: PlannedBatch, plan: BatchPlan, only: Partitions | None
    ) -> JobOutcome:
        """Write the rows of the batch, or only of some partitions, with a Spark job."""

    @abstractmethod
    def check_written(self, planned: PlannedBatch, outcomes: Sequence[JobOutcome]) -> PlannedBatch:
        """Check that all rows are written, before the batch's end is committed."""

    def on_committed(self, planned: PlannedBatch) -> tuple[LostRecords, ...]:
        """Finish after the end is committed; return further lost records."""
        del planned
        return ()

    def renew(self) -> None:
        """Renew the delivery's own commits between batches."""
        return

    def close(self) -> None:
        """Close the resources in Spark that the run's batches opened."""
        return
