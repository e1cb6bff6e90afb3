"""The Kafka sources of a staged query, whose progress is Spark's checkpoint."""

# Nothing here decides what is written: the staged commit does. As in any delivery, source records
# that were deleted before they reached the staged files or the query's state raise an error, or are
# reported.

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Final, TypeVar

from spark_eos._batch_report import LostRecords
from spark_eos._delivery.data_loss_check import DataLossCheck, deleted_meanwhile
from spark_eos._exactly_once import offsets
from spark_eos._exactly_once.delivery import Batch
from spark_eos._exactly_once.offsets import GroupRequests
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.offset_metadata import CommittedOffset, position_metadata
from spark_eos._kafka.topic_cache import TopicCache, source_topics
from spark_eos._kafka.topic_partition import Positions
from spark_eos._worker.plan import BatchRange
from spark_eos._worker.sources import Sources
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.acls import query_acls
from spark_eos.errors import AuthorizationError, SparkEosError

Result = TypeVar("Result")

_NOT_WRITTEN: Final = ("can no longer be written", "are not written")
# For a repeated batch, whose frame runs only to update the query's state.
_NOT_IN_STATE: Final = (
    "are missing from the query's state, although the batch is written, from its staged copy",
) * 2


class StagedSources:
    """Checks the sources whose topics ``sink.read`` reads."""

    def __init__(
        self,
        source: Connections,
        settings: WriterSettings,
        progress_topic: str,
        # Returns which of the given topics are read by sources that ``sink.read`` did not make.
        read_by_others: Callable[[Collection[str]], set[str]],
    ) -> None:
        self._settings = settings
        self._data_loss = DataLossCheck(source, settings, staged=True)
        # A source topic in another cluster may have the progress topic's name.
        self._namesake = None if settings.source_client is None else progress_topic
        self._read_by_others = read_by_others
        self._seen: set[str] = set()
        self._others: set[str] = set()
        self._topics = TopicCache(source, settings.limits)
        self._ids: dict[str, uuid.UUID] = {}
        self._ranges: tuple[int, list[BatchRange]] | None = None

    def ranges(self, batch: Batch) -> list[BatchRange]:
        """Return a batch's range in each source."""
        if self._ranges is None or self._ranges[0] != batch.id:
            ranges = batch.checkpoint.source_ranges(batch.id)
            new = {topic for each in ranges for topic, _ in (*each.starts, *each.ends)} - self._seen
            self._others |= self._read_by_others(new)
            self._seen |= new
            own = [replace(r, starts=self._own(r.starts), ends=self._own(r.ends)) for r in ranges]
            self._ranges = (batch.id, own)
        return self._ranges[1]

    def _own(self, positions: Positions) -> Positions:
        return {p: offset for p, offset in positions.items() if p.topic not in self._others}

    def running(
        self, batch: Batch, run: Callable[[], Result], *, repeated: bool = False
    ) -> tuple[Result, tuple[LostRecords, ...]]:
        """Run a batch's frame; return its result, and records deleted before or while it ran."""
        refused, warned = _NOT_IN_STATE if repeated else _NOT_WRITTEN
        ranges = self.ranges(batch)

        def lost() -> tuple[LostRecords, ...]:
            return tuple(
                records
                for range_ in ranges
                for records in self._data_loss.lost(range_, range_.starts, Sources(), refused)
            )

        self._check_topics(batch, ranges)
        before = lost()
        if repeated:
            # All of these records may already be written.
            before = tuple(replace(records, certain=False) for records in before)
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
        """Refuse topics that were recreated since the checkpoint's offsets were logged."""
        names = {topic for range_ in ranges for topic, _ in range_.ends}
        if not names:
            return
        marker = batch.checkpoint.markers.read()
        known = {**marker.topic_ids, **self._ids}
        known.pop(self._namesake or "", None)
        topics = source_topics(self._topics, names, known, self._settings.group_id)
        found = {name: topic.topic_id for name, topic in topics.items()}
        self._ids |= {name: found[name] for name in found if name != self._namesake}
        batch.checkpoint.markers.write(replace(marker, topic_ids=self._ids))


logger = logging.getLogger(__name__)

# Seconds that monitoring may delay a batch.
_AT_MOST: Final = 5.0


class SourcePositions:
    """Publishes one run's positions in its sources, for monitoring."""

    def __init__(
        self, connections: Connections, settings: WriterSettings, requests: GroupRequests
    ) -> None:
        self._connections = connections
        self._settings = settings
        self._requests = requests
        self._text = ""
        self._published: Positions = {}
        self._all_published_at = -offsets.RENEWED_AFTER
        self._failed = False

    def publish(self, progress_topic: str, ranges: Iterable[BatchRange]) -> None:
        """Publish where a finished batch ends in its sources; failures are only logged."""
        self._text = position_metadata(progress_topic)
        # If two sources read a partition, the one that lags behind counts.
        ends: Positions = {}
        for source_range in ranges:
            for partition, end in source_range.ends.items():
                ends[partition] = min(end, ends.get(partition, end))
        # From time to time, also publish unchanged positions: each offset expires separately.
        renewed = time.monotonic() - self._all_published_at >= offsets.RENEWED_AFTER
        moved = {p: end for p, end in ends.items() if renewed or self._published.get(p) != end}
        if not self._publish(moved):
            return
        self._published = ends
        if renewed:
            self._all_published_at = time.monotonic()

    def renew(self) -> None:
        """Publish all positions again between batches, so that none expires."""
        if self._publish(self._published):
            self._all_published_at = time.monotonic()

    def _publish(self, positions: Positions) -> bool:
        if not positions:
            return True
        offsets = {p: CommittedOffset(at, self._text) for p, at in positions.items()}
        group_id, prefix = self._settings.group_id, self._settings.id_prefix
        try:
            deadline = self._settings.group_deadline(at_most=_AT_MOST)
            # A late request with an older position only shows a larger lag for one batch.
            codes = self._requests.commit(self._requests.member, offsets, deadline)
            if refused := {code for code in codes.values() if code}:
                topics = {topic for (topic, _), code in codes.items() if code}
                raise self._connections.refusal(
                    f"positions of group {group_id!r} in its sources",
                    min(refused),
                    query_acls(group_id, prefix, topics, []),
                )
        except SparkEosError as error:
            if not self._failed:
                logger.log(
                    logging.WARNING if isinstance(error, AuthorizationError) else logging.INFO,
                    "group %s: Kafka's tools don't show the query's lag, because its positions "
                    "can't be published; the query itself does not need them: %s",
                    group_id,
                    error,
                )
            self._failed = True
            return False
        self._failed = False
        return True
