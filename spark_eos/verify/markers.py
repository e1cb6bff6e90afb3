"""Finds output records outside committed transactions, by the control markers in the log.

It fetches the log as raw record batches with kafka-python, and decodes only a batch's header and,
for a control batch, its one record, which says COMMIT or ABORT. So it shares no code with the
reader, which is librdkafka.
"""

import enum
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafka import errors as kafka_errors
from kafka.protocol.consumer import FetchRequest
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatch

from spark_eos.errors import VerificationError
from spark_eos.verify.connections import Connections
from spark_eos.verify.places import SHIFT, Places

_AT_ONCE: Final = 16 << 20
_PAUSE: Final = 0.1
_BY_NAME: Final = 12  # the last version of Fetch that identifies topics by name
_TRANSACTION_MARKERS: Final = (0, 1)
_PASSING: Final = frozenset(
    {
        3,  # UNKNOWN_TOPIC_OR_PARTITION
        5,  # LEADER_NOT_AVAILABLE
        6,  # NOT_LEADER_OR_FOLLOWER
        9,  # REPLICA_NOT_AVAILABLE
        56,  # KAFKA_STORAGE_ERROR
        74,  # FENCED_LEADER_EPOCH
        75,  # UNKNOWN_LEADER_EPOCH
    }
)


class Fate(enum.IntEnum):
    """The fate of a transaction that was not committed."""

    ABORTED = 1
    OPEN = 2


@dataclass(frozen=True)
class Uncommitted:
    """Consecutive records of one transaction that was not committed.

    Attributes:
        first: Position of the first record, as an integer of `places`.
        last: Position of the last record.
        fate: ABORTED if there is an ABORT marker, OPEN if there is no marker.
        producer_id: The transaction's producer.
    """

    first: int
    last: int
    fate: Fate
    producer_id: int


class Markers:
    """Reads the transaction markers of partitions.

    Args:
        connections: Connections to the brokers.
        places: The partitions.
        leaders: Function that finds the partitions' leaders; called again after a failure.
        timeout: Maximum number of seconds without progress.
    """

    def __init__(
        self,
        connections: Connections,
        places: Places,
        leaders: Callable[[], Mapping[tuple[str, int], int]],
        timeout: float,
    ) -> None:
        self._connections = connections
        self._places = places
        self._leaders = leaders
        self._known: Mapping[tuple[str, int], int] = {}
        self._timeout = timeout

    def uncommitted(
        self, place: int, low: int, end: int, advance: Callable[[int], None]
    ) -> Iterator[Uncommitted]:
        """Finds a partition's records whose transactions were not committed below an end.

        Args:
            place: The partition.
            low: First offset to read.
            end: Offset at which to stop; later markers are ignored.
            advance: Called with the number of offsets read since the last call.

        Raises:
            VerificationError: A broker refuses, or nothing comes within the timeout.
        """
        base = place << SHIFT
        pending: dict[int, list[list[int]]] = {}
        for batch in self._batches(place, low, end, advance):
            if not batch.is_transactional:
                continue
            producer_id = batch.producer_id
            if batch.is_control_batch:
                marker = next(iter(batch))
                # Other control records, such as KRaft's, do not end transactions.
                if marker.type in _TRANSACTION_MARKERS:
                    runs = pending.pop(producer_id, ())
                    if marker.abort:
                        yield from _found(base, runs, Fate.ABORTED, producer_id)
                continue
            runs = pending.setdefault(producer_id, [])
            if runs and runs[-1][1] + 1 == batch.base_offset:
                runs[-1][1] = batch.last_offset
            else:
                runs.append([batch.base_offset, batch.last_offset])
        for producer_id, runs in pending.items():
            yield from _found(base, runs, Fate.OPEN, producer_id)

    def _batches(
        self, place: int, low: int, end: int, advance: Callable[[int], None]
    ) -> Iterator[Any]:
        offset = low
        while offset < end:
            before = offset
            records = MemoryRecords(self._fetch(place, offset))
            for batch in records:
                if not isinstance(batch, DefaultRecordBatch):
                    raise VerificationError(
                        f"{self._places.name(place)}:{offset} has the record format of Kafka "
                        "before 0.11, which has no transactions"
                    )
                if batch.base_offset >= end:
                    advance(end - before)
                    return
                if batch.next_offset > offset:  # else it lies before the requested offset
                    yield batch
                    offset = batch.next_offset
            if offset == before:
                raise VerificationError(f"{self._places.name(place)}:{offset} can't be fetched")
            advance(min(offset, end) - before)

    def _fetch(self, place: int, offset: int) -> bytes:
        until = time.monotonic() + self._timeout
        while True:
            if self._places.partition(place) not in self._known:
                self._known = self._leaders()
            node = self._known.get(self._places.partition(place), -1)
            answer = self._connections.send(self._request(place, offset), node)
            partition = answer.responses[0].partitions[0]
            if not partition.error_code and partition.records:
                return partition.records  # type: ignore[no-any-return]
            if partition.error_code not in _PASSING | {0} or time.monotonic() > until:
                reason = kafka_errors.for_code(partition.error_code)
                raise VerificationError(
                    f"fetching {self._places.name(place)}:{offset}: {reason.__name__}"
                )
            self._known = {}
            time.sleep(_PAUSE)

    def _request(self, place: int, offset: int) -> Any:
        topic, partition = self._places.partition(place)
        topic_class = FetchRequest.FetchTopic
        return FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=_AT_ONCE,
            isolation_level=0,  # read_uncommitted: all records and all markers
            session_id=0,
            session_epoch=-1,
            topics=[
                topic_class(
                    topic=topic,
                    partitions=[
                        topic_class.FetchPartition(
                            partition=partition,
                            current_leader_epoch=-1,
                            fetch_offset=offset,
                            last_fetched_epoch=-1,
                            partition_max_bytes=_AT_ONCE,
                        )
                    ],
                )
            ],
            max_version=_BY_NAME,
        )


def _found(base: int, runs: Any, fate: Fate, producer_id: int) -> Iterator[Uncommitted]:
    for first, last in runs:
        yield Uncommitted(base + first, base + last, fate, producer_id)
