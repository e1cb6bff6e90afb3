"""What depends on a delivery in a run: the meaning of the group's offsets."""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from spark_eos._batch.data_loss import LostRecords
from spark_eos._batch.plan import Partitions, Positions
from spark_eos._batch.task_report import JobOutcome
from spark_eos._driver.changed_delivery import changed_delivery, deliveries_of
from spark_eos._driver.checkpoint_marker import Marker
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._progress.batch import Batch, PlannedBatch, RunContext
from spark_eos._progress.missing import Evidence


class Progress(Protocol):
    """One meaning of a group's offsets; `spark_eos._run.run.Run` calls its methods in this order.

    Attributes:
        delivery: Its name, for checkpoint markers and reports.
        progress_topic: The topic whose offsets are staged, or may have been; None if there is none.
    """

    delivery: str
    progress_topic: str | None

    @abstractmethod
    def partitions_to_fence(self, batch: Batch) -> Partitions:
        """The group's partitions to take over and read before anything is known."""

    def check_offsets(self, known: KnownPartitions, why: str) -> None:
        """Refuses a group that was begun with another delivery, whatever became of the marker.

        ``why``: what of the query is why it has this one.
        """
        # Whichever checkpoint they are of: without one the query would begin anew, and write all
        # again.
        for noted in deliveries_of(known):
            if noted != self.delivery:
                raise changed_delivery(noted, self.delivery, why)

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


ProgressOf = Callable[[RunContext], Progress]
"""Makes the progress of one run."""
