"""A group's committed offsets, read from its coordinator.

Not by librdkafka's admin client: its requests to coordinators abort the process if the connection
is lost at the wrong moment (librdkafka issue 4605).
"""

import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from kafka import TopicPartition
from kafka import errors as kafka_errors
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from spark_eos.errors import DeadlineExceededError, VerificationError
from spark_eos.verify.brokers import Brokers, error_name

_PAUSE: Final = 0.02
# Seconds to wait for one broker, before asking another which one is the coordinator.
_ATTEMPT: Final = 5.0
_BY_NAME: Final = 9  # the last version that identifies topics by name instead of id
_UNSTABLE: Final = kafka_errors.UnstableOffsetCommitError.errno
_NO_COORDINATOR: Final = kafka_errors.CoordinatorNotAvailableError.errno
_MOVING: Final = (
    _NO_COORDINATOR,
    kafka_errors.CoordinatorLoadInProgressError.errno,
    kafka_errors.NotCoordinatorError.errno,
)


class Stored(NamedTuple):
    """A committed offset, and the text that the client has stored with it."""

    offset: int
    text: str


Offsets = dict[TopicPartition, Stored]


class CommittedOffsets:
    """The committed offsets of one group."""

    def __init__(self, brokers: Brokers, group_id: str, timeout: float) -> None:
        self._brokers = brokers
        self.group_id = group_id
        self._timeout = timeout

    def read(
        self, partitions: Iterable[TopicPartition] | None = None, *, stable: bool
    ) -> tuple[Offsets, set[TopicPartition]]:
        """Reads offsets; without partitions all that the group has and the client may describe.

        ``stable`` waits until no open transaction is about to change an offset: of each partition
        by itself, since a running query always has some pending, and for no longer than the
        timeout and one answer. Returns offsets, and the partitions that did not become stable.

        Raises:
            DeadlineExceededError: The coordinator does not answer in time.
            VerificationError: The offsets can't be read.
        """
        until = time.monotonic() + self._timeout
        found, unstable = self._fetch(partitions, stable=stable)
        while unstable and time.monotonic() <= until:
            time.sleep(_PAUSE)
            more, unstable = self._fetch(unstable, stable=True)
            found |= more
        if unstable:
            found |= self._fetch(unstable, stable=False)[0]
        return found, unstable

    def _fetch(
        self, partitions: Iterable[TopicPartition] | None, *, stable: bool
    ) -> tuple[Offsets, set[TopicPartition]]:
        answer = self._answer(self._request(partitions, stable=stable))
        found: Offsets = {}
        unstable: set[TopicPartition] = set()
        for topic in answer.topics:
            for one in topic.partitions:
                partition = TopicPartition(topic.name, one.partition_index)
                if one.error_code == _UNSTABLE:
                    unstable.add(partition)
                elif one.error_code:
                    raise self._refused(one.error_code)
                elif one.committed_offset >= 0:
                    found[partition] = Stored(one.committed_offset, one.metadata or "")
        return found, unstable

    def _request(
        self, partitions: Iterable[TopicPartition] | None, *, stable: bool
    ) -> OffsetFetchRequest:
        group_class = OffsetFetchRequest.OffsetFetchRequestGroup
        asked: dict[str, list[int]] = {}
        for topic, number in sorted(partitions or ()):
            asked.setdefault(topic, []).append(number)
        topics = [
            group_class.OffsetFetchRequestTopics(name=topic, partition_indexes=numbers)
            for topic, numbers in asked.items()
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

    def _answer(self, request: OffsetFetchRequest) -> Any:
        """The group's part of the answer; asks again, within the timeout, if its broker moves."""
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
        """Error code and answer of the coordinator, which any broker is asked for."""
        find = FindCoordinatorRequest(
            key_type=CoordinatorType.GROUP.value, coordinator_keys=[self.group_id], min_version=4
        )
        try:
            where = self._send(find, None, until).coordinators[0]
            if where.error_code:
                return where.error_code, None
            answer = self._send(request, where.node_id, until).groups[0]
        except DeadlineExceededError as error:
            if time.monotonic() >= until:
                raise DeadlineExceededError(
                    f"offsets of group {self.group_id!r}: no answer within {self._timeout:g} s "
                    f"(--timeout): {error.text}"
                ) from error
            # The broker is gone; another one may be the coordinator, or know it.
            return _NO_COORDINATOR, None
        return answer.error_code, answer

    def _send(self, request: Any, broker: int | None, until: float) -> Any:
        left = until - time.monotonic()
        return self._brokers.send(request, broker, max(0.1, min(_ATTEMPT, left)))

    def _refused(self, code: int) -> VerificationError:
        return VerificationError(f"offsets of group {self.group_id!r}: {error_name(code)}")
