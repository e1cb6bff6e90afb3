"""The Kafka sources of a staged query, whose progress is Spark's checkpoint.

Nothing here decides what is written: the staged commit does. But what staged files, or the query's
state, lack since source records were deleted is an error, or is reported, as in any delivery.
"""

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from spark_eos._batch.data_loss import LostRecords, deleted_meanwhile
from spark_eos._batch.partition_pairs import PartitionPairs
from spark_eos._batch.plan import BatchRange, Positions
from spark_eos._driver.data_loss_check import DataLossCheck
from spark_eos._kafka.topic_cache import TopicCache, source_topics
from spark_eos._progress.batch import Batch, RunContext

Result = TypeVar("Result")

_NOT_WRITTEN: Final = ("can't be written any more", "are not written")
# Of a batch that is repeated: its frame is run for the state alone.
_NOT_IN_STATE: Final = (
    "are missing from the query's state, although the batch is written, from its staged copy",
) * 2


class StagedSources:
    """Looks after the sources whose topics ``sink.read`` reads."""

    def __init__(self, context: RunContext, reads: Callable[[str], bool]) -> None:
        self._settings = settings = context.settings
        self._data_loss = DataLossCheck(context.start.source, settings, staged=True)
        self._reads = reads
        self._topics = TopicCache(context.start.source, settings.limits)
        self._ids: dict[str, uuid.UUID] = {}
        self._ranges: tuple[int, list[BatchRange]] | None = None

    def ranges(self, batch: Batch) -> list[BatchRange]:
        """A batch's range in each source."""
        if self._ranges is None or self._ranges[0] != batch.id:
            found = batch.checkpoint.source_ranges(batch.id)
            own = [replace(r, starts=self._own(r.starts), ends=self._own(r.ends)) for r in found]
            self._ranges = (batch.id, own)
        return self._ranges[1]

    def _own(self, positions: Positions) -> Positions:
        return {p: offset for p, offset in positions.items() if self._reads(p.topic)}

    def running(
        self, batch: Batch, run: Callable[[], Result], *, repeated: bool = False
    ) -> tuple[Result, tuple[LostRecords, ...]]:
        """Runs a batch's frame, and finds the records that were deleted before or while it ran.

        ``repeated``: the batch's rows are written from files that were staged before.
        """
        refused, warned = _NOT_IN_STATE if repeated else _NOT_WRITTEN
        ranges = self.ranges(batch)

        def lost() -> tuple[LostRecords, ...]:
            return tuple(
                one
                for range_ in ranges
                for one in self._data_loss.lost(range_, range_.starts, PartitionPairs(), refused)
            )

        self._check_topics(batch, ranges)
        before = lost()
        if repeated:
            # All of them may be written.
            before = tuple(replace(one, certain=False) for one in before)
        self._data_loss.warn(batch.id, before, warned)
        with self._data_loss.explaining(lost):
            result = run()
        self._check_topics(batch, ranges)
        if self._settings.fail_on_data_loss:
            return result, before
        more = deleted_meanwhile(before, lost())
        self._data_loss.warn(batch.id, more, warned)
        return result, before + more

    def _check_topics(self, batch: Batch, ranges: list[BatchRange]) -> None:
        """Checks that the topics are those that the checkpoint's offsets belong to."""
        names = {topic for range_ in ranges for topic, _ in range_.ends}
        if not names:
            return
        marker = batch.checkpoint.marker()
        known = {**marker.topic_ids, **self._ids}
        topics = source_topics(self._topics, names, known, self._settings.group_id)
        self._ids |= {name: topic.topic_id for name, topic in topics.items()}
        batch.checkpoint.set_marker(replace(marker, topic_ids=self._ids))
