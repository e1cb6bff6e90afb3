"""Finds source records of a batch that were deleted before the query read them."""

import logging
from collections.abc import Collection

from spark_eos.batch.data_loss import LostRecords, lost_records, unreadable
from spark_eos.batch.plan import BatchRange, Positions
from spark_eos.batch.source_places import SourcePlaces
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.driver.group_deadline import group_deadline
from spark_eos.errors import CheckpointError, RecordsLostError
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.list_offsets import start_offsets

logger = logging.getLogger(__name__)


class DataLossCheck:
    """Compares a batch's range with the first offsets that its source topics still have.

    Args:
        wire: Connections to the cluster that is read.
        settings: Writer settings; ``fail_on_data_loss`` makes a loss an error.
        group_timeout_ms: Time limit of each call, in milliseconds.
    """

    def __init__(self, wire: Wire, settings: WriterSettings, group_timeout_ms: int) -> None:
        self._wire = wire
        self._settings = settings
        self._group_timeout_ms = group_timeout_ms
        self._leaders: dict[tuple[str, int], int] = {}

    def lost(
        self, batch: BatchRange, committed: Positions, places: SourcePlaces
    ) -> tuple[LostRecords, ...]:
        """The batch's records that are deleted and not written.

        Args:
            batch: The batch's range.
            committed: Next offset by (topic, partition), from before the batch.
            places: What the group's offsets stand for.

        Raises:
            RecordsLostError: There are some, and ``fail_on_data_loss`` is set.
            CheckpointError: It is set, and Spark would refuse to go on at records that are written
                and deleted.
        """
        batch, committed = places.in_source(batch), places.by_source(committed)
        topics = {
            place[0]
            for place, end in batch.ends.items()
            if end > committed[place] or batch.starts.get(place, 0) < end
        }
        if not {place for place in batch.ends if place[0] in topics} <= self._leaders.keys():
            # Partitions were added.
            self._leaders.clear()
        deadline = group_deadline(self._group_timeout_ms)
        firsts = start_offsets(self._wire, topics, deadline, self._leaders)
        if self._settings.fail_on_data_loss:
            self._refuse_unreadable(batch, unreadable(batch, committed, firsts))
        lost = lost_records(batch, committed, firsts)
        if lost and self._settings.fail_on_data_loss:
            wanted = {places.progress((one.topic, one.partition)): one.after for one in lost}
            raise RecordsLostError(
                f"batch {batch.batch_id} of group {self._settings.group_id!r}: records were "
                "deleted (retention, or delete_records) before they were read, and can't be "
                f"written any more: {', '.join(map(str, lost))}. To continue without them, start "
                "with fail_on_data_loss=False, which reports every such gap; or set the group's "
                "offsets while the query is stopped "
                f"({places.how_to_set(self._settings.group_id, wanted)}), and start with an "
                "empty checkpoint_location"
            )
        return lost

    def _refuse_unreadable(self, batch: BatchRange, found: Positions) -> None:
        if found:
            names = ", ".join(f"{topic}-{index} at {at}" for (topic, index), at in found.items())
            raise CheckpointError(
                f"by the checkpoint, batch {batch.batch_id} reads on at records that are deleted "
                f"by now: {names}. They are written, and nothing is lost, but Spark can't go on "
                "from there. Start with an empty checkpoint_location and the same group_id: the "
                "group's offsets tell where to go on"
            )

    def warn(self, batch_id: int, lost: Collection[LostRecords]) -> None:
        """Logs each loss at once: if the batch is repeated, its report won't have it."""
        for one in lost:
            logger.warning(
                "group %s, batch %d: %s were deleted before they were read, and are not written"
                if one.certain
                else "group %s, batch %d: %s were deleted while the batch was read; those that "
                "had not been read yet are not written",
                self._settings.group_id,
                batch_id,
                one,
            )
