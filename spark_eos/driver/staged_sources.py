"""The Kafka sources of a staged query, whose progress is Spark's checkpoint.

Nothing here decides what is written: the copy that the ledger names does. But what a copy, or the
query's state, lacks since source records were deleted is an error, or is reported, as on any road.
"""

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from spark_eos.batch.data_loss import LostRecords, deleted_meanwhile
from spark_eos.batch.plan import BatchRange, Positions
from spark_eos.batch.source_places import SourcePlaces
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.driver.data_loss_check import DataLossCheck
from spark_eos.driver.offset_log import OffsetLog
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.topic_cache import TopicCache, source_topics

Result = TypeVar("Result")

_NOT_WRITTEN: Final = ("can't be written any more", "are not written")
# Of a batch that is repeated: its frame is run for the state alone.
_NOT_IN_STATE: Final = (
    "are missing from the query's state, although the batch is written, from its staged copy",
) * 2


class StagedSources:
    """Looks after the sources that ``sink.read`` has made.

    Args:
        wire: Connections to the cluster that is read.
        settings: Writer settings.
        offset_log: The query's checkpoint.
        data_loss: Finds records that were deleted.
        reads: Whether ``sink.read`` reads a topic.
    """

    def __init__(
        self,
        wire: Wire,
        settings: WriterSettings,
        offset_log: OffsetLog,
        data_loss: DataLossCheck,
        reads: Callable[[str], bool],
    ) -> None:
        self._settings = settings
        self._offset_log = offset_log
        self._data_loss = data_loss
        self._reads = reads
        self._topics = TopicCache(
            wire, max_block_ms=settings.max_block_ms, max_idle_ms=settings.metadata_max_idle_ms
        )
        self._ids: dict[str, uuid.UUID] = {}
        self._ranges: tuple[int, list[BatchRange]] | None = None

    def ranges(self, batch_id: int) -> list[BatchRange]:
        """A batch's range in each source.

        Args:
            batch_id: Spark's number of the batch.
        """
        if self._ranges is None or self._ranges[0] != batch_id:
            self._ranges = (
                batch_id,
                [
                    replace(one, starts=self._own(one.starts), ends=self._own(one.ends))
                    for one in self._offset_log.source_ranges(batch_id)
                ],
            )
        return self._ranges[1]

    def _own(self, positions: Positions) -> Positions:
        return {place: offset for place, offset in positions.items() if self._reads(place[0])}

    def running(
        self, batch_id: int, run: Callable[[], Result], *, repeated: bool = False
    ) -> tuple[Result, tuple[LostRecords, ...]]:
        """Runs a batch's frame, and finds the records that it did not get.

        Args:
            batch_id: Spark's number of the batch.
            run: Runs the frame.
            repeated: Whether the batch's rows are written from an earlier copy.

        Returns:
            What ``run`` returns, and the records that were deleted before or while it ran.

        Raises:
            RecordsLostError: There are such records, and ``fail_on_data_loss`` is set.
            OffsetsLostError: A topic was deleted and recreated, so it has other records.
            TopicNotFoundError: A topic does not exist any more.
        """
        refused, warned = _NOT_IN_STATE if repeated else _NOT_WRITTEN
        ranges = [_without_new(one) for one in self.ranges(batch_id)]

        def lost() -> tuple[LostRecords, ...]:
            return tuple(
                one
                for range_ in ranges
                for one in self._data_loss.lost(range_, range_.starts, SourcePlaces(), refused)
            )

        self._check_topics(ranges)
        before = lost()
        if repeated:
            # All of them may be written.
            before = tuple(replace(one, certain=False) for one in before)
        self._data_loss.warn(batch_id, before, warned)
        with self._data_loss.explaining(lost):
            result = run()
        self._check_topics(ranges)
        if self._settings.fail_on_data_loss:
            return result, before
        more = deleted_meanwhile(before, lost())
        self._data_loss.warn(batch_id, more, warned)
        return result, before + more

    def _check_topics(self, ranges: list[BatchRange]) -> None:
        """Checks that the topics are those that the checkpoint's offsets belong to."""
        names = {topic for range_ in ranges for topic, _ in range_.ends}
        if not names:
            return
        note = self._offset_log.note()
        known = {**note.topic_ids, **self._ids}
        topics = source_topics(self._topics, names, known, self._settings.group_id)
        self._ids |= {name: topic.topic_id for name, topic in topics.items()}
        self._offset_log.set_note(replace(note, topic_ids=self._ids))


def _without_new(batch: BatchRange) -> BatchRange:
    """A range without partitions that are new in it, which begin where their logs do."""
    return replace(batch, ends={p: end for p, end in batch.ends.items() if p in batch.starts})
