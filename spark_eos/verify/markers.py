"""Which output records belong to no committed transaction, by the control markers in the log.

The log is fetched as raw record batches, by kafka-python. Of a batch only its header is decoded,
of a control batch also its one record: whether it says COMMIT or ABORT. So the reader, which is
librdkafka, and this have no code in common.
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
_BY_NAME: Final = 12  # the last version of Fetch that names topics
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
    """What became of a transaction that was not committed."""

    ABORTED = 1
    OPEN = 2


@dataclass(frozen=True)
class Uncommitted:
    """A run of records of one transaction that was not committed.

    Attributes:
        first: The first record, as an integer of `places`.
        last: The last record.
        fate: Whether its marker says ABORT, or there is none.
        producer_id: Whose transaction.
    """

    first: int
    last: int
    fate: Fate
    producer_id: int


class Markers:
    """Reads the markers of partitions.

    Args:
        connections: The route to the brokers.
        places: The partitions.
        leaders: Finds the partitions' leaders; asked again after a failure.
        timeout: Seconds without any progress after which it gives up.
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
        """Runs of a partition's records whose transactions were not committed below an end.

        Args:
            place: The partition.
            low: The first offset.
            end: Markers at or beyond it are not looked at.
            advance: Told how many offsets have been read.

        Raises:
            VerificationError: The broker refuses to be read from.
        """
        base = place << SHIFT
        pending: dict[int, list[list[int]]] = {}
        for batch in self._batches(place, low, end, advance):
            if not batch.is_transactional:
                continue
            producer_id = batch.producer_id
            if batch.is_control_batch:
                marker = next(iter(batch))
                # Other control records, such as those of KRaft, end no transaction.
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
                        f"{self._places.name(place)}:{offset} has the format of a Kafka before "
                        "0.11, which knows no transactions"
                    )
                if batch.base_offset >= end:
                    advance(end - before)
                    return
                if batch.next_offset > offset:  # else it lies before what was asked for
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
            isolation_level=0,  # everything, with all markers
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
