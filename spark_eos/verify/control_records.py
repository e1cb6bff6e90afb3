"""Finds output records outside committed transactions, from the control records in the log."""

import enum
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from kafka import TopicPartition
from kafka import errors as kafka_errors
from kafka.protocol.consumer import FetchRequest
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatch

from spark_eos.errors import VerificationError
from spark_eos.verify.cluster import Cluster, check
from spark_eos.verify.partitions import name_of

_AT_ONCE: Final = 16 << 20
_BY_NAME: Final = 12  # the last version of Fetch that identifies topics by name
_ENDS_TRANSACTION: Final = (0, 1)  # abort and commit, unlike KRaft's control records
_NOBODY: Final = -1  # the producer id in batches written without a producer id


class Fate(enum.IntEnum):
    """The fate of a transaction that was not committed."""

    ABORTED = 1
    OPEN = 2  # there is no control record
    # Retention removed its records or its control record before they were read.
    UNKNOWN = 3


class Uncommitted(NamedTuple):
    """A run of records of one uncommitted transaction, by its first and last offset."""

    first: int
    last: int
    fate: Fate
    producer_id: int


def uncommitted(
    cluster: Cluster, partition: TopicPartition, low: int, end: int, advance: Callable[[int], None]
) -> Iterator[Uncommitted]:
    """Yield the records below ``end`` whose transactions are not known to be committed."""
    pending: dict[int, list[list[int]]] = {}
    for first, last, batch in _batches(cluster, partition, low, end, advance):
        if batch is None:
            for producer_id, runs in pending.items():
                yield from _of(runs, Fate.UNKNOWN, producer_id)
            pending.clear()
            yield Uncommitted(first, last, Fate.UNKNOWN, _NOBODY)
            continue
        if not batch.is_transactional:
            continue
        if batch.is_control_batch:
            yield from _ended(pending, batch)
            continue
        runs = pending.setdefault(batch.producer_id, [])
        if runs and runs[-1][1] + 1 == first:
            runs[-1][1] = last
        else:
            runs.append([first, last])
    for producer_id, runs in pending.items():
        yield from _of(runs, Fate.OPEN, producer_id)


def _ended(pending: dict[int, list[list[int]]], control_batch: Any) -> Iterator[Uncommitted]:
    """Remove the runs of a transaction that has ended; yield them unless they are committed."""
    producer_id = control_batch.producer_id
    control = next(iter(control_batch), None)
    if control is None:
        # The cleaner of a compacted topic empties markers.
        yield from _of(pending.pop(producer_id, []), Fate.UNKNOWN, producer_id)
    elif control.type in _ENDS_TRANSACTION:
        runs = pending.pop(producer_id, [])
        if control.abort:
            yield from _of(runs, Fate.ABORTED, producer_id)


def _batches(
    cluster: Cluster, partition: TopicPartition, low: int, end: int, advance: Callable[[int], None]
) -> Iterator[tuple[int, int, Any]]:
    """Yield first offset, last offset and batch; the batch is None where retention removed it."""
    offset = low
    while offset < end:
        before = offset
        records = cluster.ask(
            f"fetching {name_of(partition)}:{offset}",
            functools.partial(_fetch, cluster, partition, offset),
            cluster.timeout,
        )
        if records is None:
            offset = cluster.lows([partition])[partition]
            if offset > before:
                yield before, offset - 1, None
        # Only batch headers and control records are decoded here, by kafka-python. The outputs are
        # read by librdkafka, which shares no code with kafka-python.
        for batch in MemoryRecords(records or b""):
            if not isinstance(batch, DefaultRecordBatch):
                raise VerificationError(
                    f"{name_of(partition)}:{offset} has the record format of Kafka before "
                    "0.11, which has no transactions"
                )
            if batch.base_offset >= end:
                advance(end - before)
                return
            if batch.next_offset > offset:  # skip batches before the requested offset
                yield max(offset, batch.base_offset), batch.last_offset, batch
                offset = batch.next_offset
        if offset == before:
            raise VerificationError(f"{name_of(partition)}:{offset} can't be fetched")
        advance(min(offset, end) - before)


def _fetch(
    cluster: Cluster, partition: TopicPartition, offset: int, seconds: float
) -> bytes | None:
    """Return records from an offset on, or None if that offset does not exist."""
    leader = cluster.leader(partition, seconds)
    answer = cluster.send(_request(partition, offset), leader, seconds)
    answer_part = answer.responses[0].partitions[0]
    if answer_part.error_code == kafka_errors.OffsetOutOfRangeError.errno:
        return None
    check(answer_part.error_code)
    if not answer_part.records:
        raise kafka_errors.OffsetNotAvailableError
    return answer_part.records  # type: ignore[no-any-return]


def _request(partition: TopicPartition, offset: int) -> FetchRequest:
    topic_class = FetchRequest.FetchTopic
    wanted = topic_class.FetchPartition(
        partition=partition.partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        partition_max_bytes=_AT_ONCE,
    )
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=_AT_ONCE,
        isolation_level=0,  # read_uncommitted: all records and all control records
        session_id=0,
        session_epoch=-1,
        topics=[topic_class(topic=partition.topic, partitions=[wanted])],
        max_version=_BY_NAME,
    )


def _of(runs: Iterable[list[int]], fate: Fate, producer_id: int) -> Iterator[Uncommitted]:
    return (Uncommitted(first, last, fate, producer_id) for first, last in runs)
