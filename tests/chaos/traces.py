"""Records the steps of `chaos.model` that pass the proxy: requests and answers, in order.

A trace is a list of events. A request's event has its kind and contents; the event of an answer, or
of a connection that ended without an answer, refers to the request by number.
"""

import gzip
import json
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
)

from chaos.lockstep import Ranges, widen
from spark_eos._kafka.protocol import ConsumerGroupHeartbeatRequest, TxnOffsetCommitRequest
from spark_eos._kafka.topic_partition import TopicPartition
from support.proxy_faults import Link, Request

Event = dict[str, Any]
# In a record batch: after base offset, length, leader epoch, magic, checksum, attributes, last
# offset delta and two timestamps.
_PRODUCER_AT: Final = 8 + 4 + 4 + 1 + 4 + 2 + 4 + 8 + 8


def producer_of(message: Any) -> tuple[int, int] | None:
    """Id and epoch of the producer that sent records in a transaction."""
    if message.transactional_id is None:
        return None
    for topic in message.topic_data:
        for partition in topic.partition_data:
            found: tuple[int, int] = struct.unpack_from(">qh", partition.records, _PRODUCER_AT)
            return found
    return None


class Trace:
    """Watches a proxy."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._waiting: dict[tuple[int, int], tuple[int, Callable[[Any], Any]]] = {}

    def request(self, link: Link, request: Request) -> None:
        if request.api_key not in _READERS or not request.client_id.startswith("spark-eos-"):
            return
        asked, answered = _READERS[request.api_key]
        what = asked(request.message())
        if what is None:
            return
        number = len(self.events)
        process = int(request.client_id.rpartition("-")[2])
        self.events.append({"at": _now(), "process": process, **what})
        self._waiting[id(link), request.correlation_id] = number, answered

    def answer(self, link: Link, request: Request, content: bytes) -> None:
        found = self._waiting.pop((id(link), request.correlation_id), None)
        if found is not None:
            number, answered = found
            answer = answered(request.answer(content))
            self.events.append({"at": _now(), "answer": number, **answer})

    def gone(self, link: Link) -> None:
        for key in [key for key in self._waiting if key[0] == id(link)]:
            number, _ = self._waiting.pop(key)
            self.events.append({"at": _now(), "lost": number})


def resolved(
    events: Iterable[Event],
    names: Mapping[str, str],
    pairs: Mapping[TopicPartition, TopicPartition],
    batches: Mapping[Any, Ranges],
) -> list[Event]:
    """The events by source partition, with the source offsets of written records.

    ``names`` are topic names by id. ``pairs`` maps partitions to the source partitions that they
    represent.
    """

    def partition_of(topic: str, number: int) -> TopicPartition:
        partition = TopicPartition(names.get(topic, topic), number)
        return pairs.get(partition, partition)

    def resolved_fields(event: Event) -> Iterator[tuple[str, Any]]:
        for key, value in event.items():
            if key in {"offsets", "codes"}:
                yield key, [(*partition_of(t, number), of) for t, number, of in value]
            elif key == "batches":
                yield "rows", [(*source, *of) for source, of in rows(value).items()]
            else:
                yield key, value

    def rows(written: Iterable[tuple[str, int, int]]) -> Ranges:
        found: Ranges = {}
        for topic, partition, first in written:
            held = batches.get((TopicPartition(topic, partition), first), {})
            for source, (low, high) in held.items():
                widen(found, source, low, high)
        return found

    return [dict(resolved_fields(event)) for event in events]


@dataclass(eq=False)
class Transaction:
    """The contents of a producer's requests in one transaction; ``offsets`` include the member."""

    id: str
    producer: tuple[int, int]
    after: str | None  # why its producer must not be reused, or None
    rows: Ranges = field(default_factory=dict)
    offsets: dict[TopicPartition, tuple[str, int]] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)  # kinds of requests
    lost: list[str] = field(default_factory=list)  # kinds of requests that were not answered
    ended: bool = False  # whether its commit was acknowledged

    @property
    def clean(self) -> bool:
        """Return True if the transaction's producer may be used again."""
        return self.ended and not self.lost

    def __str__(self) -> str:
        return f"{self.id} epoch {self.producer[1]}"


def transactions(events: list[Event]) -> dict[int, Transaction]:
    """The transactions, by the numbers of their requests."""
    of: dict[int, Transaction] = {}
    current: dict[tuple[int, int], Transaction] = {}
    for number, event in enumerate(events):
        if "producer" in event and "kind" in event:
            of[number] = _transaction_of(event, current)
            continue
        about: int = event["answer"] if "answer" in event else event.get("lost", -1)
        one = of.get(about)
        if one is None:
            continue
        kind = events[about]["kind"]
        if "lost" in event:
            one.lost.append(kind)
        elif kind == "EndTxn":
            one.ended = one.ended or not event["code"]
        for topic, partition, first, last in event.get("rows", ()):
            widen(one.rows, TopicPartition(topic, partition), first, last)
    return of


def _transaction_of(event: Event, current: dict[tuple[int, int], Transaction]) -> Transaction:
    producer = event["producer"][0], event["producer"][1]
    one, kind = current.get(producer), event["kind"]
    # AddPartitionsToTxn is librdkafka's first request of a transaction.
    if one is None or (kind == "AddPartitionsToTxn" and "EndTxn" in one.sent):
        after = None
        if one is not None and not one.clean:
            after = f"a lost answer to {one.lost[0]}" if one.lost else "an end that was refused"
        one = current[producer] = Transaction(event["id"], producer, after)
    one.sent.add(kind)
    for topic, partition, offset in event.get("offsets", ()):
        one.offsets[TopicPartition(topic, partition)] = event["member"], offset
    return one


def _now() -> float:
    return round(time.monotonic(), 4)


def save(events: Iterable[Event], file: Path) -> None:
    """Writes the events as JSON lines."""
    with gzip.open(file, "wt") as opened:
        opened.writelines(json.dumps(event) + "\n" for event in events)


def load(file: Path) -> list[Event]:
    """Reads saved events."""
    with gzip.open(file, "rt") as opened:
        return [json.loads(line) for line in opened]


# Topics are named by their ids where a request does so.


def _partitions(topics: Any, value: Callable[[Any], Any]) -> Iterator[tuple[str, int, Any]]:
    for topic in topics:
        for one in topic.partitions:
            yield topic.name or str(topic.topic_id), one.partition_index, value(one)


def _offsets(topics: Any) -> list[tuple[str, int, Any]]:
    return list(_partitions(topics, lambda one: one.committed_offset))


def _codes(answer: Any) -> Event:
    return {"codes": list(_partitions(answer.topics, lambda one: one.error_code))}


def _code(answer: Any) -> Event:
    return {"code": answer.error_code}


def _heartbeat(message: Any) -> Event | None:
    if message.member_epoch > 0:
        return None  # A regular heartbeat changes nothing.
    return {
        "kind": "ConsumerGroupHeartbeat",
        "member": message.member_id,
        "epoch": message.member_epoch,
        "instance": message.instance_id,
    }


def _fetch(message: Any) -> Event | None:
    group = message.groups[0]
    if group.member_id is None:
        return None  # A fetch without a member decides nothing.
    return {"kind": "OffsetFetch", "member": group.member_id}


def _fetched(answer: Any) -> Event:
    group = answer.groups[0]
    return {
        "code": group.error_code,
        "codes": list(_partitions(group.topics, lambda one: one.error_code)),
        "offsets": _offsets(group.topics),
    }


def _commit(message: Any) -> Event:
    return {
        "kind": "OffsetCommit",
        "member": message.member_id,
        "offsets": _offsets(message.topics),
    }


def _init(message: Any) -> Event:
    return {"kind": "InitProducerId", "id": message.transactional_id}


def _initialized(answer: Any) -> Event:
    return {"code": answer.error_code, "producer": [answer.producer_id, answer.producer_epoch]}


def _add(message: Any) -> Event:
    return {
        "kind": "AddPartitionsToTxn",
        "id": message.v3_and_below_transactional_id,
        "producer": [message.v3_and_below_producer_id, message.v3_and_below_producer_epoch],
    }


def _added(answer: Any) -> Event:
    found = [p for t in answer.results_by_topic_v3_and_below for p in t.results_by_partition]
    return {"code": max((p.partition_error_code for p in found), default=0)}


def _produce(message: Any) -> Event | None:
    producer = producer_of(message)
    if producer is None:
        return None
    return {"kind": "Produce", "id": message.transactional_id, "producer": list(producer)}


def _produced(answer: Any) -> Event:
    found = [(t.name, p.index, p) for t in answer.responses for p in t.partition_responses]
    return {
        "code": max((p.error_code for _, _, p in found), default=0),
        # A leader that has lost a batch returns its old offset, where another batch may be by now.
        "batches": [(topic, index, p.base_offset) for topic, index, p in found if not p.error_code],
    }


def _send_offsets(message: Any) -> Event:
    return {
        "kind": "TxnOffsetCommit",
        "id": message.transactional_id,
        "producer": [message.producer_id, message.producer_epoch],
        "member": message.member_id,
        "offsets": _offsets(message.topics),
    }


def _end(message: Any) -> Event:
    return {
        "kind": "EndTxn" if message.committed else "EndTxn, abort",
        "id": message.transactional_id,
        "producer": [message.producer_id, message.producer_epoch],
    }


_READERS: Final[dict[int, tuple[Callable[[Any], Event | None], Callable[[Any], Event]]]] = {
    ConsumerGroupHeartbeatRequest.API_KEY: (_heartbeat, _code),
    OffsetFetchRequest.API_KEY: (_fetch, _fetched),
    OffsetCommitRequest.API_KEY: (_commit, _codes),
    InitProducerIdRequest.API_KEY: (_init, _initialized),
    AddPartitionsToTxnRequest.API_KEY: (_add, _added),
    ProduceRequest.API_KEY: (_produce, _produced),
    TxnOffsetCommitRequest.API_KEY: (_send_offsets, _codes),
    EndTxnRequest.API_KEY: (_end, _code),
}
