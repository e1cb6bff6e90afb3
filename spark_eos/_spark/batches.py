"""The batches of a run, as its delivery writes them: one table of the deliveries."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame

from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._driver.checkpoint_note import DIRECT, MIRRORED, STAGED
from spark_eos._progress.own import Direct
from spark_eos._progress.paired import Mirrored
from spark_eos._progress.staged import Staged
from spark_eos._progress.strategy import Batch, Delivery
from spark_eos._spark.batch_job import BatchJobs
from spark_eos._spark.runtime import QueryRuntime
from spark_eos._spark.staged_copies import StagedCopies
from spark_eos.options import ProgressTopic


class Batches(Protocol):
    """Makes a run's batches."""

    def of(self, frame: DataFrame, batch_id: int) -> Batch:
        """The batch of a frame."""

    def close(self) -> None:
        """Ends what belongs to the run."""


@dataclass(frozen=True)
class FrameBatches:
    """Batches whose rows are written as they come."""

    runtime: QueryRuntime
    jobs: BatchJobs

    def of(self, frame: DataFrame, batch_id: int) -> Batch:
        """See `Batches`."""
        return Batch(batch_id, functools.partial(self.jobs.run, frame), self.runtime.offset_log)

    def close(self) -> None:
        """Nothing is left."""


@dataclass(frozen=True)
class StagedBatches:
    """Batches whose rows are staged in files first."""

    runtime: QueryRuntime
    jobs: BatchJobs
    files: StagedCopies

    def of(self, frame: DataFrame, batch_id: int) -> Batch:
        """See `Batches`."""
        files = self.files.of_batch(frame)
        rows = functools.partial(self.jobs.run_copy, files)
        return Batch(batch_id, rows, self.runtime.offset_log, files)

    def close(self) -> None:
        """Ends the session that reads them."""
        self.files.close()


@dataclass(frozen=True)
class Deliverer:
    """What a sink gives to its runs.

    Attributes:
        settings: The writer's settings.
        location: The checkpoint's location, as given to Spark.
        progress_topic: The progress topic, for deliveries that need one.
        reads: Whether ``sink.read`` reads a topic.
    """

    settings: WriterSettings
    location: str
    progress_topic: ProgressTopic
    reads: Callable[[str], bool]

    def delivery(self, name: str, runtime: QueryRuntime) -> tuple[Delivery, Batches]:
        """What a run needs for a delivery."""
        dead_letters = self.settings.dead_letters is not None
        jobs = BatchJobs(self.settings.topic, runtime, dead_letters=dead_letters)
        return {DIRECT: self._direct, MIRRORED: self._mirrored, STAGED: self._staged}[name](
            runtime, jobs
        )

    def _direct(self, runtime: QueryRuntime, jobs: BatchJobs) -> tuple[Delivery, Batches]:
        return Direct(), FrameBatches(runtime, jobs)

    def _mirrored(self, runtime: QueryRuntime, jobs: BatchJobs) -> tuple[Delivery, Batches]:
        return Mirrored(self.progress_topic), FrameBatches(runtime, jobs)

    def _staged(self, runtime: QueryRuntime, jobs: BatchJobs) -> tuple[Delivery, Batches]:
        files = StagedCopies(
            runtime,
            self.location,
            self.progress_topic.name,
            self.settings.topic,
            dead_letters=self.settings.dead_letters is not None,
        )
        return Staged(self.progress_topic, self.reads), StagedBatches(runtime, jobs, files)
