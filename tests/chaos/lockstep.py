"""Checks that brokers' own logs agree with the verifier, transaction by transaction.

The check ignores clients: the coordinator's log decides what was committed, markers decide what is
visible, and offsets count in the order in which they took effect.
"""

import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path

from chaos.broker_logs import (
    OFFSETS,
    Batch,
    GroupOffset,
    State,
    batches,
    group_offset,
    states,
)
from chaos.invariants import Rule, Violation
from chaos.loads import POSITION
from spark_eos._kafka.topic_partition import TopicPartition

Ranges = dict[TopicPartition, tuple[int, int]]


@dataclass
class Logged:
    committed: int = 0  # number of the query's committed transactions
    aborted: int = 0  # number of the query's aborted transactions
    records: int = 0  # visible output records, dead letters included
    offsets: dict[TopicPartition, int] = field(default_factory=dict)  # the group's last offsets
    # The first and last source offset of each batch's records, by source partition. Batches are
    # identified by their partition and their own first offset.
    batches: dict[tuple[TopicPartition, int], Ranges] = field(default_factory=dict, compare=False)
    problems: list[str] = field(default_factory=list)  # differences, as texts


@dataclass(eq=False)
class _Transaction:
    """The coordinator log's entries for a transaction."""

    transactional_id: str  # the producer's id
    commit: bool | None  # the decision; None before it
    partitions: frozenset[TopicPartition]  # all partitions added to it
    prepared_ms: int = sys.maxsize  # decision by the broker's clock; markers follow
    # The coordinator never knew the transaction. It could not replicate its beginning in time, and
    # reported this to the client; the entry that it had appended was replicated later.
    void: bool = False


@dataclass(eq=False)
class _Part:
    """One partition's records and markers of one transaction."""

    partition: TopicPartition
    transaction: _Transaction | None = None  # None outside transactions
    records: int = 0  # number of records
    # The first and last source offset of the records, by source partition.
    sources: Ranges = field(default_factory=dict)
    offsets: list[GroupOffset] = field(default_factory=list)  # committed offsets
    commit: bool | None = None  # the marker's decision; None without a marker


_Parts = Mapping[TopicPartition, _Part]


def read_logs(
    data: Path,
    *,
    group_id: str,
    prefix: str,
    outputs: Iterable[str],
    positions: bool,
    pairs: Mapping[TopicPartition, TopicPartition],
    drained: bool,
) -> Logged:
    """Reads all of a cluster's logs that concern a query.

    ``pairs`` maps the group's partitions to the source partitions that they represent.
    """
    logged = Logged()
    transactions = _transactions(states(data), prefix, logged)
    parts: dict[_Transaction, dict[TopicPartition, _Part]] = defaultdict(dict)
    add = _adding_positions(logged) if positions else _add_count
    for topic in outputs:
        for part in _parts(batches(data, topic), add, transactions):
            if part.transaction is None:
                logged.problems.append(f"records of {part.partition} are in no known transaction")
            else:
                parts[part.transaction][part.partition] = part
    offsets = [
        part
        for part in _parts(batches(data, OFFSETS), _adding_offsets(group_id, pairs), transactions)
        if part.offsets
    ]
    for part in offsets:
        if part.transaction is not None:
            parts[part.transaction][part.partition] = part
    for transaction in (one for of_producer in transactions.values() for one in of_producer):
        _compare(transaction, parts[transaction], logged, drained=drained)
    effective = (
        (part.partition, one.position, part, one)
        for part in offsets
        if part.commit
        # The last of several offsets in a transaction counts.
        for one in {one.partition: one for one in part.offsets}.values()
    )
    for _, _, part, one in sorted(effective, key=itemgetter(0, 1)):
        low = logged.offsets.get(one.partition, 0)
        _take_effect(one, logged)
        if part.transaction is not None:
            _compare_records(one, low, parts[part.transaction], logged)
    return logged


def judged(logged: Logged, records_out: int, *, drained: bool) -> list[Violation]:
    """Returns the differences between the logs and the verifier."""
    problems = list(logged.problems)
    if drained and logged.records != records_out:
        problems.append(f"{logged.records:,} records are visible, the verifier saw {records_out:,}")
    if not problems:
        return []
    return [Violation(Rule.LOCKSTEP, f"{len(problems):,} times, first: {problems[0]}")]


_DECIDED = {
    "PrepareCommit": True,
    "PrepareAbort": False,
    "CompleteCommit": True,
    "CompleteAbort": False,
}
# Transactions by producer id, in the order of their beginnings.
_Transactions = Mapping[int, Sequence[_Transaction]]


def _transactions(found: Iterable[State], prefix: str, logged: Logged) -> _Transactions:
    """The transactions, with the coordinator's decisions."""
    transactions: dict[int, list[_Transaction]] = defaultdict(list)
    current: dict[str, _Transaction] = {}
    for state in found:
        name = state.transactional_id
        if not name.startswith(prefix):
            continue
        if state.name == "Ongoing" and name not in current:
            current[name] = _Transaction(name, None, state.partitions)
            transactions[state.producer_id].append(current[name])
        if state.name == "Empty" and name in current:
            # The coordinator ends transactions that it knows before it opens a producer.
            current.pop(name).void = True
        one = current.get(name)
        if one is None:
            continue  # An epoch without a transaction was fenced.
        one.partitions |= state.partitions
        commit = _DECIDED.get(state.name)
        if commit is None:
            continue
        if one.commit is None:
            one.commit, one.prepared_ms = commit, state.time_ms
        elif one.commit != commit:
            logged.problems.append(f"{name}: both committed and aborted")
        if state.name.startswith("Complete"):
            del current[name]
    return transactions


def _parts(
    found: Iterable[Batch], add: Callable[[_Part, Batch], None], transactions: _Transactions
) -> Iterator[_Part]:
    """Each partition's parts of transactions, and records outside of transactions."""
    begun: dict[tuple[TopicPartition, int], _Part] = {}
    for batch in found:
        place = (batch.partition, batch.producer_id)
        if not batch.transactional:
            part = _Part(batch.partition, commit=True)
            add(part, batch)
            yield part
        elif batch.commit is None:
            add(begun.setdefault(place, _Part(batch.partition)), batch)
        elif place in begun:  # otherwise, it is a repeated marker
            part = begun.pop(place)
            part.commit = batch.commit
            of_producer = transactions.get(batch.producer_id, ())
            # The marker comes after its transaction's decision, and before the next decision.
            after = bisect_right(of_producer, batch.time_ms, key=lambda one: one.prepared_ms)
            part.transaction = of_producer[after - 1] if after else None
            yield part
    for (_, producer_id), part in begun.items():
        of_producer = transactions.get(producer_id, ())
        part.transaction = of_producer[-1] if of_producer else None
        yield part


def _add_count(part: _Part, batch: Batch) -> None:
    part.records += len(batch.records)


def _adding_positions(logged: Logged) -> Callable[[_Part, Batch], None]:
    def add(part: _Part, batch: Batch) -> None:
        _add_count(part, batch)
        found: Ranges = {}
        for record in batch.records:
            source, offset = _position(dict(record.headers))
            widen(found, source, offset, offset)
        logged.batches[batch.partition, batch.records[0].offset] = found
        for source, (first, last) in found.items():
            widen(part.sources, source, first, last)

    return add


def widen(ranges: Ranges, source: TopicPartition, first: int, last: int) -> None:
    before = ranges.get(source, (first, last))
    ranges[source] = min(first, before[0]), max(last, before[1])


def _adding_offsets(
    group_id: str, pairs: Mapping[TopicPartition, TopicPartition]
) -> Callable[[_Part, Batch], None]:
    def add(part: _Part, batch: Batch) -> None:
        found = map(group_offset, batch.records)
        part.offsets += [
            replace(one, partition=pairs.get(one.partition, one.partition))
            for one in found
            if one is not None and one.group_id == group_id
        ]

    return add


def _position(headers: Mapping[str, bytes]) -> tuple[TopicPartition, int]:
    """The source position in a record's or dead letter's headers."""
    if POSITION in headers:
        topic, partition, offset = headers[POSITION].decode().rsplit(":", 2)
    else:
        of = {name.rpartition(".")[2]: text for name, text in headers.items() if "errors." in name}
        topic, partition, offset = (of[name].decode() for name in ("topic", "partition", "offset"))
    return TopicPartition(topic, int(partition)), int(offset)


def _compare(transaction: _Transaction, parts: _Parts, logged: Logged, *, drained: bool) -> None:
    """Compares the coordinator's decision with the partitions' records and markers."""
    problems = []
    if transaction.commit is None:
        is_open = drained and (parts or not transaction.void)
        problems += ["it was neither committed nor aborted"] if is_open else []
    else:
        logged.committed += transaction.commit
        logged.aborted += not transaction.commit
        problems += [
            f"{partition} has commit={part.commit}, decided was commit={transaction.commit}"
            for partition, part in parts.items()
            if part.commit != transaction.commit and (drained or part.commit is not None)
        ]
    problems += [
        f"{partition} has records, and is not in it"
        for partition in parts.keys() - transaction.partitions
    ]
    if transaction.commit:
        logged.records += sum(part.records for part in parts.values())
        problems += [
            f"{partition} has nothing of it" for partition in transaction.partitions - parts.keys()
        ]
        moved = {one.partition for part in parts.values() for one in part.offsets}
        sources = {source for part in parts.values() for source in part.sources}
        if not moved or sources - moved:
            problems.append(f"it has records of {sorted(sources)}, and offsets of {sorted(moved)}")
    logged.problems += [f"{transaction.transactional_id}: {problem}" for problem in problems]


def _take_effect(one: GroupOffset, logged: Logged) -> None:
    if one.offset is None:  # deleted
        logged.offsets.pop(one.partition, None)
        return
    # Outside transactions, the driver commits the ends of partitions without output.
    if one.offset < (known := logged.offsets.get(one.partition, 0)):
        logged.problems.append(f"{one.partition}: from {known} back to {one.offset}")
    logged.offsets[one.partition] = one.offset


def _compare_records(one: GroupOffset, low: int, parts: _Parts, logged: Logged) -> None:
    """Checks that a transaction's records lie between the previous offset and its own."""
    source, high = one.partition, one.offset or 0
    for partition, part in parts.items():
        if source not in part.sources:
            continue
        first, last = part.sources[source]
        if not low <= first <= last < high:
            logged.problems.append(
                f"{partition} has records of {source} from {first} to {last}, and their offset "
                f"went from {low} to {high}"
            )
