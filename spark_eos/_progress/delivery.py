"""What depends on a delivery in a run: the meaning of the group's offsets."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from spark_eos._batch.batch_report import LostRecords
from spark_eos._batch.plan import BatchPlan, BatchRange, Partitions, Positions
from spark_eos._batch.sources import Sources
from spark_eos._batch.task_report import JobOutcome
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._driver.checkpoint_marker import Marker
from spark_eos._driver.offset_log import OffsetLog
from spark_eos._driver.start import Start
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.stored_text import Owner, StagedBatch
from spark_eos._progress.missing import Evidence
from spark_eos._progress.offsets import GroupOffsets
from spark_eos._progress.ownership import changed_delivery, deliveries_of


class StepClock:
    """Adds up the time spent in each step."""

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


Rows = Callable[["PlannedBatch", BatchPlan, Partitions | None], JobOutcome]
"""Writes a batch's rows with a Spark job: all, or only those of some of the plan's partitions."""


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


@dataclass(frozen=True)
class PlannedBatch:
    """A batch, and what the group's offsets say of it."""

    batch: Batch
    # By the group's partitions, as everything here.
    range: BatchRange
    settings: WriterSettings
    sources: Sources = field(default_factory=Sources)
    # Partitions that are not in the batch, whose offsets are renewed with the batch's.
    idle: Partitions = ()
    # Committed offsets before its rows.
    before: Positions = field(default_factory=dict)
    # The files that its rows are read from.
    staged: StagedBatch | None = None
    # Whether these were staged before this run wrote the batch.
    repeated: bool = False
    # Records that were deleted before they were read.
    lost: tuple[LostRecords, ...] = ()

    @property
    def partitions(self) -> Partitions:
        """The partitions whose offsets the run must hold."""
        return {*self.range.ends, *self.idle}

    @property
    def rows(self) -> int | None:
        """Number of rows, if they were counted."""
        return None if self.staged is None else self.staged.rows


class Progress(ABC):
    """One meaning of a group's offsets; `spark_eos._run.run` calls its methods in this order."""

    # Its name, for checkpoint markers and reports.
    delivery: str
    # The topic whose offsets are staged, or may have been.
    progress_topic: str | None = None

    def __init__(self, settings: WriterSettings, start: Start, offsets: GroupOffsets) -> None:
        self._settings = settings
        self._group_id = settings.group_id
        self._start = start
        self._offsets = offsets

    @abstractmethod
    def partitions_to_fence(self, batch: Batch) -> Partitions:
        """The group's partitions to take over and read before anything is known."""

    def check_offsets(self, known: KnownPartitions, why: str) -> None:
        """Refuses a group that was begun with another delivery; ``why`` the query has this one."""
        # Whichever checkpoint they are of: without one the query would begin anew, and write all
        # again.
        for noted in deliveries_of(known):
            if noted != self.delivery:
                raise changed_delivery(noted, self.delivery, why)

    def owner(self, batch: Batch) -> Owner:
        """Whose the offsets are that a batch commits."""
        return Owner.of(batch.checkpoint.query_id(), self._settings.topic)

    def check_owner(self, batch: Batch) -> None:
        """Refuses offsets of another query, unless this one may continue from them."""
        del batch

    @abstractmethod
    def learn(self, batch: Batch, marker: Marker) -> None:
        """Learns what the offsets mean; all older runs are fenced, and all offsets read."""

    @abstractmethod
    def plan(self, batch: Batch) -> PlannedBatch:
        """The batch by the group's partitions and by those that tasks see."""

    @abstractmethod
    def initial(self, planned: PlannedBatch, evidence: Evidence) -> Positions:
        """The offsets to commit for partitions that have none; refuses those lost."""

    @abstractmethod
    def prepare(self, planned: PlannedBatch, marker: Marker) -> PlannedBatch:
        """Checks that the rows may be written, marks the checkpoint; stages them."""

    def reading(self, planned: PlannedBatch) -> AbstractContextManager[object]:
        """Surrounds a job; explains one that fails since source records were deleted."""
        del planned
        return contextlib.nullcontext()

    @abstractmethod
    def check_written(self, planned: PlannedBatch, outcomes: Sequence[JobOutcome]) -> PlannedBatch:
        """Checks that all rows are written, before the batch's end is committed."""

    def on_committed(self, planned: PlannedBatch) -> tuple[LostRecords, ...]:
        """Does what is left to do once the end is committed; returns what else was lost."""
        del planned
        return ()

    def renew(self) -> None:
        """Renews between batches what it commits beside the group's progress."""
        return


ProgressOf = Callable[[WriterSettings, Start, GroupOffsets], Progress]
"""Makes the progress of one run."""
