"""A micro-batch, as Spark hands it over and as it is planned; what a run's parts have in common."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from spark_eos._batch.data_loss import LostRecords
from spark_eos._batch.plan import BatchPlan, BatchRange, Partitions, Positions
from spark_eos._batch.task_report import JobOutcome
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._driver.offset_log import OffsetLog
from spark_eos._driver.start import Start
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.stored_text import Owner, StagedBatch
from spark_eos._progress.offsets import GroupOffsets


class StepClock:
    """Adds up the time spent in each step.

    Example:
        >>> clock = StepClock()
        >>> with clock.step("plan"):
        ...     pass
        >>> list(clock.milliseconds)
        ['plan']
    """

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Times the block as part of a step, even if it raises."""
        started = time.monotonic()
        try:
            yield
        finally:
            spent = (time.monotonic() - started) * 1000
            self.milliseconds[name] = self.milliseconds.get(name, 0.0) + spent


class Rows(Protocol):
    """A batch's rows: each call is a Spark job."""

    def __call__(
        self,
        settings: WriterSettings,
        batch: BatchRange,
        batch_plan: BatchPlan,
        only: Partitions | None,
    ) -> JobOutcome:
        """Writes all rows, or only those of some of the plan's partitions."""


class StagedFiles(Protocol):
    """The files of staged batches, written and read by Spark."""

    def stage(self, batch_id: int, files: int) -> tuple[str, int]:
        """Runs the batch once into at most so many files; returns their name and row count."""

    def replay(self) -> int:
        """Runs the batch for its state alone; returns the number of its rows."""

    def open(self, copy: StagedBatch) -> bool:
        """Sets the files that the batch's rows are read from; returns whether they exist."""

    def remove_old(self, batch_id: int) -> None:
        """Removes the files of earlier batches."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch as the API hands it over; what Spark logged of it is read when asked for."""

    id: int
    rows: Rows
    checkpoint: OffsetLog
    files: StagedFiles | None = None
    clock: StepClock = field(default_factory=StepClock, compare=False)

    @cached_property
    def source(self) -> BatchRange:
        """Its range in its source partitions; not every staged batch has one."""
        return self.checkpoint.batch_range(self.id)

    @cached_property
    def began_ms(self) -> int:
        """When Spark first began it, in milliseconds since 1970."""
        return self.checkpoint.began_ms(self.id)


@dataclass(frozen=True)
class PlannedBatch:
    """A batch, and what the group's offsets say of it.

    Attributes:
        range: Its range by the partitions that tasks see.
        group_range: The same by the group's partitions, and those that are only renewed with it.
        before: Committed offsets before its rows, by the partitions that tasks see.
        staged: The files that its rows are read from.
        repeated: Whether these were staged before this run wrote the batch.
        lost: Records that were deleted before they were read.
    """

    batch: Batch
    range: BatchRange
    group_range: BatchRange
    settings: WriterSettings
    before: Positions = field(default_factory=dict)
    staged: StagedBatch | None = None
    repeated: bool = False
    lost: tuple[LostRecords, ...] = ()

    @property
    def rows(self) -> int | None:
        """Number of rows, if they were counted."""
        return None if self.staged is None else self.staged.rows


@dataclass(frozen=True)
class RunContext:
    """What all parts of a run have in common."""

    settings: WriterSettings
    start: Start
    offsets: GroupOffsets

    def owner(self, batch: Batch) -> Owner:
        """Whose the offsets are that a batch commits."""
        return Owner.of(batch.checkpoint.query_id(), self.settings.topic)

    def deadline(self) -> Deadline:
        """The time limit of a call to the group, from now on."""
        return self.settings.group_deadline()
