"""Direct delivery: rows stay in their source partitions, and are written immediately."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from spark_eos._batch_report import LostRecords
from spark_eos._checkpoint.marker import DIRECT, Marker
from spark_eos._checks.start import Start
from spark_eos._delivery.base import Delivery, RunParts, SinkQuery
from spark_eos._delivery.data_loss_check import DataLossCheck, deleted_meanwhile
from spark_eos._delivery.gaps import check_no_gap, check_not_cut
from spark_eos._delivery.ownership import check_owner, owners_of, ownership_change
from spark_eos._exactly_once.delivery import Batch, PlannedBatch
from spark_eos._kafka.cluster import by_topic, same_cluster
from spark_eos._kafka.list_offsets import FirstOffsets, end_offsets
from spark_eos._kafka.offset_metadata import Committed
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._pyspark_internals import StreamSource, is_connect
from spark_eos._spark.columns import check_columns
from spark_eos._spark.flat_source import can_be_flat, flattened, with_struct
from spark_eos._spark.narrow_plan import check_stream
from spark_eos._spark.stream_sources import check_read_from, check_sources, only_topic
from spark_eos._worker.plan import BatchPlan, Partitions
from spark_eos._worker.task_report import JobOutcome
from spark_eos.errors import warn

logger = logging.getLogger(__name__)


class DirectDelivery(Delivery):
    """Each source partition's own offset in the group is its progress; rows are written as read."""

    name = DIRECT
    why = "its rows stay in their source partitions"
    continues_from = "the group's offsets"
    uses_progress_topic = False

    @classmethod
    def rejection(cls, *, other_cluster: bool) -> str | None:
        if not other_cluster:
            return None
        return (
            "delivery='direct' commits offsets in the cluster that is read, but source_kafka is "
            "another cluster: use delivery='mirrored', which also accepts only narrow queries"
        )

    @classmethod
    def check_stream(cls, frame: DataFrame, plans: Mapping[str, str]) -> None:
        check_stream(frame, plans, lineage_follows=not is_connect(frame))

    @classmethod
    def check_columns(cls, schema: T.StructType, default_topic: str | None) -> None:
        check_columns(with_struct(schema), default_topic)

    @classmethod
    def check_sources(cls, sources: Sequence[StreamSource]) -> None:
        check_sources(sources)

    @classmethod
    def check_clusters(cls, start: Start, sources: Sequence[StreamSource]) -> None:
        check_read_from(
            lambda servers: same_cluster(start.source, servers, start.deadline()), sources
        )

    @classmethod
    def positions(cls, offsets: Committed) -> Positions:
        return {partition: committed.offset for partition, committed in offsets.items()}

    @classmethod
    def flattened(cls, frame: DataFrame, query: SinkQuery) -> DataFrame | None:
        if query.settings.dead_letters is None and can_be_flat(frame.schema):
            return flattened(frame, only_topic(query.sources))
        return None

    # A run ------------------------------------------------------------------------------------

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        self._data_loss = DataLossCheck(parts.start.source, parts.settings)

    def partitions_to_fence(self, batch: Batch) -> Partitions:
        return batch.source.ends.keys()

    def _check_owner(self, batch: Batch) -> None:
        offsets, marker = self._offsets, batch.checkpoint.markers.read()
        check_owner(
            self._group_id,
            offsets.known.owner or self.owner(batch),
            offsets.known,
            offsets.sources,
            self._group_partitions(batch),
            self._settings.moved_from,
            begun_with=marker.group_id if marker.topic_ids else None,
        )

    def learn(self, batch: Batch) -> None:
        """Warn if the query continues from offsets that its checkpoint doesn't mention."""
        super().learn(batch)
        marker = self._marker(batch)
        offsets, read = self._offsets, self._group_partitions(batch)
        begun = not offsets.known.partitions.isdisjoint(read)
        owners = owners_of(offsets.known, read)
        what = ownership_change(
            self.owner(batch),
            owners,
            # A marker alone does not show that the query has run: a run that was refused the group
            # leaves a marker, too.
            new=begun and batch.id == 0 and (bool(owners) or marker.group_id is None),
        )
        if not what:
            return
        left, done = self._left(batch.source.ends.keys())
        warn(
            logger,
            "EOS66",
            "group %s: %s. The query continues from the group's offsets: up to %s source records "
            "are left to write, and up to %s before them are not written again. To write them all, "
            "use another group_id and another checkpoint_location",
            self._group_id,
            what,
            f"{left:,}",
            f"{done:,}",
        )

    def _left(self, read: Partitions) -> tuple[int, int]:
        """Return the numbers of uncommitted and of committed records in these partitions."""
        topics = {topic for topic, _ in read}
        connections, deadline = self._start.source, self._settings.group_deadline()
        starts = FirstOffsets(connections).of(read, deadline)
        ends = end_offsets(connections, topics, deadline, needed=read)
        committed = self._by_source_partition(self._offsets.committed)
        left = done = 0
        for partition, start in starts.items():
            at = max(start, committed.get(partition, start))
            done += at - start
            if end := ends[partition]:
                left += max(0, end.last_stable - at)
        return left, done

    def _group_partitions(self, batch: Batch) -> set[TopicPartition]:
        """Return the group's partitions that stand for a batch's source partitions."""
        return set(map(self._offsets.sources.partition, batch.source.ends))

    def plan(self, batch: Batch) -> PlannedBatch:
        return PlannedBatch(batch, batch.source, self._settings)

    def prepare(self, planned: PlannedBatch) -> PlannedBatch:
        offsets, batch = self._offsets, planned.batch
        check_not_cut(self._settings.group, planned.range, offsets.sources)
        check_no_gap(self._settings.group, planned.range, offsets.committed, offsets.sources)
        batch.checkpoint.markers.write(self._new_marker(planned))
        with batch.clock.step("range"):
            lost = self._lost(batch, offsets.committed)
            self._data_loss.warn(batch.id, lost)
        return replace(planned, before=offsets.committed, lost=lost)

    def write_rows(
        self, planned: PlannedBatch, plan: BatchPlan, only: Partitions | None
    ) -> JobOutcome:
        batch = planned.batch
        with self._data_loss.explaining(lambda: self._lost(batch, self._offsets.committed)):
            return super().write_rows(planned, plan, only)

    def _by_source_partition(self, committed: Positions) -> Positions:
        source = self._offsets.sources.source
        return {source(partition): offset for partition, offset in committed.items()}

    def _lost(self, batch: Batch, committed: Positions) -> tuple[LostRecords, ...]:
        sources = self._offsets.sources
        return self._data_loss.lost(batch.source, self._by_source_partition(committed), sources)

    def _new_marker(self, planned: PlannedBatch) -> Marker:
        read = by_topic(planned.batch.source.ends).items()
        partitions = {topic: frozenset(own) for topic, own in read}
        return replace(super()._new_marker(planned), partitions=partitions)

    def check_written(self, planned: PlannedBatch, outcomes: Sequence[JobOutcome]) -> PlannedBatch:
        del outcomes
        if self._settings.fail_on_data_loss:
            return planned
        more = deleted_meanwhile(planned.lost, self._lost(planned.batch, planned.before))
        self._data_loss.warn(planned.batch.id, more)
        return replace(planned, lost=planned.lost + more)
