"""A group's committed offsets, read from its coordinator."""

import functools
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from kafka import TopicPartition
from kafka import errors as kafka_errors
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import CoordinatorType

from spark_eos.verify.cluster import Cluster, check
from spark_eos.verify.partitions import by_topic

_PAUSE: Final = 0.02
_BY_NAME: Final = 9  # the last version that identifies topics by name instead of id
_UNSTABLE: Final = kafka_errors.UnstableOffsetCommitError.errno


class Stored(NamedTuple):
    """A committed offset and the metadata text that the client stored with it."""

    offset: int
    text: str


StoredOffsets = dict[TopicPartition, Stored]


class CommittedOffsets:
    """The committed offsets of one group."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self._cluster = cluster
        self.group_id = group_id

    def read(
        self, partitions: Iterable[TopicPartition] | None = None, *, stable: bool
    ) -> tuple[StoredOffsets, set[TopicPartition]]:
        """Return offsets (by default all we may describe), and partitions that stayed unstable."""
        # Wait until no open transaction is about to change an offset. Each partition is awaited
        # separately, since a running query always has pending offsets in some partition.
        until = time.monotonic() + self._cluster.timeout
        offsets, unstable = self._asked(partitions, stable=stable)
        while unstable and time.monotonic() <= until:
            time.sleep(_PAUSE)
            more, unstable = self._asked(unstable, stable=True)
            offsets |= more
        if unstable:
            offsets |= self._asked(unstable, stable=False)[0]
        return offsets, unstable

    def _asked(
        self, partitions: Iterable[TopicPartition] | None, *, stable: bool
    ) -> tuple[StoredOffsets, set[TopicPartition]]:
        fetch = functools.partial(self._fetch, self._request(partitions, stable=stable))
        return self._cluster.ask(f"offsets of group {self.group_id!r}", fetch)

    def _fetch(
        self, request: OffsetFetchRequest, seconds: float
    ) -> tuple[StoredOffsets, set[TopicPartition]]:
        where = self._cluster.coordinator(CoordinatorType.GROUP, self.group_id, seconds)
        check(where.error_code)
        answer = self._cluster.send(request, where.node_id, seconds).groups[0]
        check(answer.error_code)
        offsets: StoredOffsets = {}
        unstable: set[TopicPartition] = set()
        for topic in answer.topics:
            for entry in topic.partitions:
                partition = TopicPartition(topic.name, entry.partition_index)
                if entry.error_code == _UNSTABLE:
                    unstable.add(partition)
                    continue
                check(entry.error_code)
                if entry.committed_offset >= 0:
                    offsets[partition] = Stored(entry.committed_offset, entry.metadata or "")
        return offsets, unstable

    def _request(
        self, partitions: Iterable[TopicPartition] | None, *, stable: bool
    ) -> OffsetFetchRequest:
        group_class = OffsetFetchRequest.OffsetFetchRequestGroup
        topics = [
            group_class.OffsetFetchRequestTopics(name=topic, partition_indexes=numbers)
            for topic, numbers in by_topic(partitions or ()).items()
        ]
        group = group_class(
            group_id=self.group_id,
            member_id=None,
            member_epoch=-1,
            topics=None if partitions is None else topics,
        )
        return OffsetFetchRequest(
            groups=[group], require_stable=stable, min_version=8, max_version=_BY_NAME
        )
