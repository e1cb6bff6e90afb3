"""Finds source records of a batch that were deleted before the query read them."""

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from spark_eos._batch_report import LostRecords
from spark_eos._checkpoint.offset_log import CONTINUE_EMPTY
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.list_offsets import FirstOffsets
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._worker.plan import BatchRange
from spark_eos._worker.sources import Sources
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.errors import CheckpointError, RecordsLostError, SparkEosError, warn

logger = logging.getLogger(__name__)


class DataLossCheck:
    """Compares a batch's range with the first offsets that its source topics still have."""

    def __init__(
        self, connections: Connections, settings: WriterSettings, *, staged: bool = False
    ) -> None:
        self._first = FirstOffsets(connections)
        self._settings = settings
        self._staged = staged

    def lost(
        self,
        batch: BatchRange,
        committed: Positions,
        sources: Sources,
        outcome: str = "can no longer be written",
    ) -> tuple[LostRecords, ...]:
        """Return the batch's records that were deleted before they were written.

        With ``fail_on_data_loss``, raise an error if there are any.
        """
        concerned = {
            partition
            for partition, end in batch.ends.items()
            if end > committed.get(partition, 0) or batch.starts.get(partition, 0) < end
        }
        log_starts = self._first.of(concerned, self._settings.group_deadline())
        if self._settings.fail_on_data_loss:
            self._refuse_unreadable(batch, unreadable(batch, committed, log_starts))
        lost = lost_records(batch, committed, log_starts)
        if lost and self._settings.fail_on_data_loss:
            raise RecordsLostError(
                f"batch {batch.batch_id} of group {self._settings.group_id!r}: records were "
                f"deleted (retention, or delete_records) before they were read, and {outcome}: "
                f"{', '.join(map(str, lost))}. To continue without them, start with "
                "fail_on_data_loss=False, which reports every such gap"
                f"{self._or_set(lost, sources)}"
            )
        return lost

    def _or_set(self, lost: Collection[LostRecords], sources: Sources) -> str:
        if self._staged:
            return ""
        wanted = {
            sources.partition(TopicPartition(records.topic, records.partition)): records.after
            for records in lost
        }
        return (
            "; or set the group's offsets while the query is stopped "
            f"({sources.how_to_set(self._settings.group, wanted)}), and start with an empty "
            "checkpoint_location"
        )

    @contextlib.contextmanager
    def explaining(self, look: Callable[[], object]) -> Iterator[None]:
        """Explain a job that failed because source records were deleted while it ran."""
        try:
            yield
        except SparkEosError:
            raise
        except Exception as error:
            # Spark reports deleted records in thousands of words, and advises ignoring them.
            if self._settings.fail_on_data_loss and "failOnDataLoss" in str(error):
                logger.debug("a job has failed", exc_info=error)
                look()
            raise

    def _refuse_unreadable(self, batch: BatchRange, positions: Positions) -> None:
        if positions:
            names = ", ".join(f"{partition} at {at}" for partition, at in positions.items())
            raise CheckpointError(
                f"according to the checkpoint, batch {batch.batch_id} continues at records that "
                f"have been deleted: {names}. They are already written, so nothing is lost, but "
                f"Spark can't continue from there. To continue, {CONTINUE_EMPTY}"
            )

    def warn(
        self, batch_id: int, lost: Collection[LostRecords], outcome: str = "are not written"
    ) -> None:
        """Log each loss at once: if the batch is repeated, its report won't mention the loss."""
        for records in lost:
            when = (
                "before they were read, and"
                if records.certain
                else "while the batch was read; those that had not been read yet"
            )
            warn(
                logger,
                "EOS59",
                "group %s, batch %d: %s were deleted %s %s",
                self._settings.group_id,
                batch_id,
                records,
                when,
                outcome,
            )


def lost_records(
    batch: BatchRange, committed: Positions, first_offsets: Positions
) -> tuple[LostRecords, ...]:
    """Return the batch's deleted records, from the group's offset to the first one that exists."""
    lost = []
    for partition, first in sorted(first_offsets.items()):
        position = max(batch.starts.get(partition, 0), committed.get(partition, 0))
        after = min(first, batch.ends[partition])
        if after > position:
            lost.append(LostRecords(*partition, position, after))
    return tuple(lost)


def unreadable(
    batch: BatchRange, committed: Positions, first_offsets: Positions
) -> dict[TopicPartition, int]:
    """Return start offsets of the batch whose records are already written and have been deleted."""
    positions = {}
    for partition, first in sorted(first_offsets.items()):
        start = batch.starts.get(partition, 0)
        if start < batch.ends[partition] and start < first <= committed.get(partition, 0):
            positions[partition] = start
    return positions


def deleted_meanwhile(
    before: Iterable[LostRecords], now: Iterable[LostRecords]
) -> tuple[LostRecords, ...]:
    """Return the records that were deleted while the batch was read."""
    known = {TopicPartition(lost.topic, lost.partition): lost.after for lost in before}
    meanwhile = []
    for lost in now:
        first = known.get(TopicPartition(lost.topic, lost.partition), lost.first)
        if lost.after > first:
            meanwhile.append(replace(lost, first=first, certain=False))
    return tuple(meanwhile)
