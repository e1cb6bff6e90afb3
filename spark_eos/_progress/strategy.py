"""What a delivery is made of: a batch, the work that is left of it, and a strategy."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from spark_eos._batch.data_loss import LostRecords
from spark_eos._batch.plan import BatchPlan, BatchRange, Partitions, Positions
from spark_eos._batch.task_report import JobOutcome
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._driver.checkpoint_marker import Marker
from spark_eos._driver.offset_log import OffsetLog
from spark_eos._driver.start import Start
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.offset_metadata import StagedBatch
from spark_eos._kafka.offset_owner import Owner
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import MemberIdentity
from spark_eos._progress.missing import Evidence
from spark_eos._progress.offsets import GroupOffsets

Members = Mapping[TopicPartition, MemberIdentity]


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
class Work:
    """A batch, and what the group's offsets say of it.

    Attributes:
        range: Its range by the partitions that tasks see.
        held: The same by the group's partitions, and those that are only renewed with it.
        initial: The offsets to commit for partitions that have none; refuses those lost.
        reading: Surrounds a job, and explains one that fails since source records were deleted.
        before: Committed offsets before its rows, by the partitions that tasks see.
        after_end: What is left to do once its end is committed; returns what else was lost.
    """

    batch: Batch
    range: BatchRange
    held: BatchRange
    settings: WriterSettings
    initial: Callable[[Evidence], Positions]
    reading: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    before: Positions = field(default_factory=dict)
    staged: StagedBatch | None = None
    lost: tuple[LostRecords, ...] = ()
    after_end: Callable[[], tuple[LostRecords, ...]] = tuple

    @property
    def rows(self) -> int | None:
        """Number of rows, if they were counted."""
        return None if self.staged is None else self.staged.rows


@dataclass(frozen=True)
class Query:
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


class Strategy(Protocol):
    """One meaning of a group's offsets, in the order in which a batch comes to its methods.

    Attributes:
        delivery: Its name, for checkpoint markers and reports.
        progress_topic: The topic whose offsets are staged, or may have been; None if there is none.
    """

    delivery: str
    progress_topic: str | None

    def first(self, batch: Batch) -> Partitions:
        """The group's partitions to fence and read before anything is known."""

    def check_owner(self, batch: Batch) -> None:
        """Refuses offsets of another query, unless this one may continue from them."""

    def learn(self, batch: Batch, marker: Marker) -> None:
        """Learns what the offsets mean; all older runs are fenced, and all offsets read."""

    def work(self, batch: Batch) -> Work:
        """The batch by the group's partitions and by those that tasks see."""

    def prepare(self, work: Work, marker: Marker) -> Work:
        """Checks that the rows may be written, marks the checkpoint; stages them."""

    def check(self, work: Work, outcomes: Sequence[JobOutcome]) -> Work:
        """Checks that all rows are written, before the batch's end is committed."""


StrategyOf = Callable[[Query], Strategy]
"""Makes the strategy of one run."""
