"""A group's committed offsets, read from its coordinator.

Not by librdkafka's admin client: its requests to coordinators abort the process if the connection
is lost at the wrong moment (librdkafka issue 4605).
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from spark_eos.client.error_codes import Code, code_names
from spark_eos.errors import DeadlineExceededError, VerificationError
from spark_eos.verify.connections import Connections
from spark_eos.verify.places import by_topic

_PAUSE: Final = 0.02
# Seconds to wait for one broker, before asking another which one is the coordinator.
_ATTEMPT: Final = 5.0
# What a staged query publishes for monitoring is no progress.
_POSITION: Final = '{"spark-eos":"position",'
_BY_NAME: Final = 9  # the last version that identifies topics by name instead of id
_MOVING: Final = (
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
)


Partition = tuple[str, int]
"""Topic and number of a partition in the group's cluster."""


class Stored(NamedTuple):
    """A committed offset, and the text that the client has stored with it.

    Example:
        >>> Stored(120, "").offset
        120
    """

    offset: int
    text: str


class GroupOffsets:
    """The committed offsets of one group.

    Args:
        connections: Connections to the cluster.
        group_id: The group.
        timeout: Seconds to wait for an answer.

    Attributes:
        group_id: The group.
    """

    def __init__(self, connections: Connections, group_id: str, timeout: float) -> None:
        self._connections = connections
        self.group_id = group_id
        self._timeout = timeout
        self._asked = 0

    def committed(
        self, partitions: Iterable[Partition], *, stable: bool
    ) -> tuple[dict[Partition, Stored], set[Partition]]:
        """Reads the group's committed offsets.

        Args:
            partitions: The partitions to read.
            stable: Whether to wait until no open transaction is about to change an offset. Each
                partition is waited for by itself, because a running query always has some
                pending, for no longer than the timeout and one answer.

        Returns:
            Offsets by partition, without partitions that have none; and the partitions whose
            offset did not become stable.

        Raises:
            DeadlineExceededError: The coordinator does not answer in time.
            VerificationError: The offsets can't be read.
        """
        missing = set(partitions)
        found: dict[Partition, Stored] = {}
        until = time.monotonic() + self._timeout
        while missing:
            unstable = set()
            for partition, stored, code in self._fetch(missing, stable=stable):
                if code == Code.UNSTABLE_OFFSET_COMMIT:
                    unstable.add(partition)
                elif code:
                    raise self._refused(code)
                elif stored.offset >= 0:
                    found[partition] = stored
            missing = unstable
            if missing and time.monotonic() > until:
                old, _ = self.committed(missing, stable=False)
                return {**found, **old}, missing
            if missing:
                time.sleep(_PAUSE)
        return found, set()

    def all(self) -> dict[Partition, Stored]:
        """Reads the committed offsets of all topics that the client may describe.

        What open transactions are about to change is as it was before.

        Raises:
            DeadlineExceededError: The coordinator does not answer in time.
            VerificationError: The offsets can't be read.
        """
        found: dict[Partition, Stored] = {}
        for partition, stored, code in self._fetch(None, stable=False):
            if code:
                raise self._refused(code)
            found[partition] = stored
        return found

    def pending(self) -> tuple[int, list[str]]:
        """Finds what open transactions are about to change, in whatever topics the group has.

        It waits for each partition by itself, for no longer than the timeout and one answer. A
        broker leaves out topics that the client may not describe, and partitions that had no
        offset before.

        Returns:
            The number of the group's offsets; and ``topic:partition`` of those that did not become
            stable, sorted.

        Raises:
            DeadlineExceededError: The coordinator does not answer in time.
            VerificationError: The offsets can't be read.
        """
        unstable: set[str] | None = None
        until = time.monotonic() + self._timeout
        while True:
            answer = self._exchange(self._request(None, stable=True))
            codes = {
                f"{topic.name}:{one.partition_index}": one.error_code
                for topic in answer.topics
                for one in topic.partitions
            }
            refused = set(codes.values()) - {0, Code.UNSTABLE_OFFSET_COMMIT}
            if refused:
                raise self._refused(min(refused))
            now = {name for name, code in codes.items() if code}
            unstable = now if unstable is None else unstable & now
            if not unstable or time.monotonic() > until:
                return len(codes), sorted(unstable)
            time.sleep(_PAUSE)

    def _fetch(
        self, partitions: Iterable[Partition] | None, *, stable: bool
    ) -> list[tuple[Partition, Stored, int]]:
        """Returns partition, offset and error code of each partition; None for all there are."""
        asked = None if partitions is None else by_topic(partitions)
        answer = self._exchange(self._request(asked, stable=stable))
        return [
            (
                (topic.name, one.partition_index),
                Stored(one.committed_offset, one.metadata or ""),
                one.error_code,
            )
            for topic in answer.topics
            for one in topic.partitions
            if not (one.metadata or "").startswith(_POSITION)
        ]

    def _request(
        self, asked: Mapping[str, list[int]] | None, *, stable: bool
    ) -> OffsetFetchRequest:
        """Returns the request for some partitions, or for all offsets of the group."""
        group_class = OffsetFetchRequest.OffsetFetchRequestGroup
        topic_class = group_class.OffsetFetchRequestTopics
        topics = (
            None
            if asked is None
            else [topic_class(name=topic, partition_indexes=at) for topic, at in asked.items()]
        )
        return OffsetFetchRequest(
            groups=[
                group_class(
                    group_id=self.group_id,
                    member_id=None,
                    member_epoch=-1,
                    topics=topics,
                )
            ],
            require_stable=stable,
            min_version=8,
            max_version=_BY_NAME,
        )

    def _exchange(self, request: OffsetFetchRequest) -> Any:
        """Returns the group's part of the answer, which may take the timeout."""
        until = time.monotonic() + self._timeout
        while True:
            code, answer = self._ask(request, until)
            if not code:
                return answer
            if code not in _MOVING:
                raise self._refused(code)
            if time.monotonic() > until:
                raise DeadlineExceededError(
                    f"{self._refused(code)}, for {self._timeout:g} s (--timeout)"
                )
            time.sleep(_PAUSE)

    def _ask(self, request: OffsetFetchRequest, until: float) -> tuple[int, Any]:
        """Returns error code and answer of the coordinator."""
        brokers = self._connections.brokers()
        self._asked = (self._asked + 1) % len(brokers)
        find = FindCoordinatorRequest(
            key_type=CoordinatorType.GROUP.value, coordinator_keys=[self.group_id], min_version=4
        )
        try:
            where = self._send(find, brokers[self._asked], until).coordinators[0]
            if where.error_code:
                return where.error_code, None
            answer = self._send(request, where.node_id, until).groups[0]
        except DeadlineExceededError as error:
            if time.monotonic() >= until:
                raise DeadlineExceededError(
                    f"offsets of group {self.group_id!r}: no answer within {self._timeout:g} s "
                    f"(--timeout): {error}"
                ) from error
            # The broker is gone; another one may be the coordinator, or know it.
            return Code.COORDINATOR_NOT_AVAILABLE, None
        return answer.error_code, answer

    def _send(self, request: Any, node: int, until: float) -> Any:
        left = until - time.monotonic()
        return self._connections.send(request, node, max(0.1, min(_ATTEMPT, left)))

    def _refused(self, code: int) -> VerificationError:
        return VerificationError(f"offsets of group {self.group_id!r}: {code_names([code])}")
