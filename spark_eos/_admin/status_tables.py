"""The tables of which a query's status is made, for a terminal or a notebook."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.text import Text

from spark_eos._admin.cluster_status import ClusterStatus
from spark_eos._admin.group_progress import MirroredPartition, PartitionStatus, StagedStatus
from spark_eos._client.printable import counted, listed, printable
from spark_eos._client.tables import FittingTable
from spark_eos._kafka.blocked_partitions import BlockedPartition
from spark_eos._kafka.cluster import by_topic
from spark_eos._kafka.groups import DescribedMember
from spark_eos._kafka.open_transactions import OpenTransaction
from spark_eos._kafka.silent_brokers import does_not_answer
from spark_eos._kafka.stored_text import ranges_of
from spark_eos._kafka.topic_partition import TopicPartition

# A line names at most so many partitions.
_NAMED = 20


def host(member: DescribedMember) -> str:
    """Return the member's host, without the slash that Java puts before an address."""
    return printable(member.client_host.removeprefix("/"))


def silent_brokers(names: Sequence[str]) -> Text:
    """Say what is not known, since brokers do not answer."""
    what = does_not_answer(names)
    unknown = "the open transactions that it coordinates and the partitions that it leads"
    return Text(f"{what[0].upper()}{what[1:]}: {unknown} are unknown", style="bold yellow")


def transactions(found: Iterable[OpenTransaction], now: float) -> FittingTable:
    rows = (
        (one.transactional_id, one.state, *_times(one, now), ranges(one.partitions))
        for one in found
    )
    return FittingTable("transactional id", "state", "age>", "timeout>", "in", rows=rows)


def _times(one: OpenTransaction, now: float) -> tuple[str | None, str]:
    age = one.age(now)
    return None if age is None else duration(age), duration(one.timeout_ms / 1000)


def duration(seconds: float) -> str:
    """Format seconds in their two largest units: ``12 s``, ``3 min 20 s``, ``2 d 4 h``."""
    whole = int(seconds)
    units = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    for (size, name), (next_size, next_name) in pairwise(units):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {name}" + (f" {rest} {next_name}" if rest else "")
    return f"{whole} s"


def ranges(partitions: Iterable[TopicPartition]) -> str:
    """Format partitions by topic as ranges: ``orders 0-3,7``."""
    found = by_topic(partitions).items()
    return "; ".join(f"{topic} {ranges_of(numbers)}" for topic, numbers in found)


def members(found: Iterable[DescribedMember]) -> FittingTable:
    rows = (
        (
            one.instance_id or one.member_id,
            one.epoch,
            one.client_id,
            host(one),
            None if one.assigned is None else ranges(one.assigned) or "nothing",
        )
        for one in found
    )
    return FittingTable("member", "epoch>", "client id", "host", "assigned", rows=rows)


def partitions(found: Iterable[PartitionStatus], names: Mapping[str, str]) -> FittingTable:
    columns = ("topic", "partition>", "committed>", "stable end>", "end>", "lag>", "member")
    rows = (
        (
            one.topic,
            one.partition,
            one.committed,
            one.last_stable,
            one.high_watermark,
            one.lag,
            None if one.member is None else names[one.member],
        )
        for one in found
    )
    return FittingTable(*columns, rows=rows)


def deleted(found: Iterable[PartitionStatus]) -> Text:
    """Warn of what retention has deleted before the query has read it."""
    lost = sorted(
        ((one.deleted, f"{one.topic} {one.partition}") for one in found if one.deleted),
        reverse=True,
    )
    names = listed((f"{name} ({number:,})" for number, name in lost), _NAMED)
    total = sum(number for number, _ in lost)
    what = f"{counted(total, 'offset')} of its lag {'has' if total == 1 else 'have'} been deleted"
    return Text(f"Retention is overtaking the query: {what}: {names}", style="bold yellow")


def progress_table(found: Iterable[MirroredPartition]) -> FittingTable:
    columns = ("topic", "partition>", "next offset>", "progress topic", "progress>", "cluster")
    rows = (
        (one.source.topic, one.source.partition, one.offset, *one.progress, one.source.cluster)
        for one in found
    )
    return FittingTable(*columns, rows=rows)


def staged(found: StagedStatus) -> Group:
    batch = found.batch
    files = f"{found.files_written:,} of {batch.files:,}"
    columns = ("progress topic", "batch>", "rows>", "files written>", "directory")
    row = (found.topic, batch.batch, batch.rows, files, batch.directory)
    title = Text(f"Last staged batch of Spark's query {printable(batch.query)}")
    return Group(title, FittingTable(*columns, rows=[row]))


def foreign(found: Sequence[TopicPartition]) -> Text:
    names = ranges(found[:_NAMED]) + (", ..." if len(found) > _NAMED else "")
    what = counted(len(found), "offset")
    return Text(f"{what} with a text that is not spark-eos', set by another client: {names}")


def held_back(found: Sequence[BlockedPartition], now: float) -> Group:
    columns = ("topic", "partition>", "stable end>", "end>")
    rows = (
        (
            one.topic,
            one.partition,
            one.last_stable,
            one.high_watermark,
            one.transaction and one.transaction.transactional_id,
            None if one.producer_id is None else str(one.producer_id),
            *((None, None) if one.transaction is None else _times(one.transaction, now)),
        )
        for one in found
    )
    unknown = "" if all(one.transaction for one in found) else ", or by unknown ones"
    title = f"Held back by other clients' open transactions{unknown}"
    parts: list[RenderableType] = [
        Text(f"{title}: nobody reads past the stable end", style="bold"),
        FittingTable(*columns, "held by", "producer id>", "age>", "timeout>", rows=rows),
    ]
    if hidden := sorted({one.topic for one in found if not one.may_read}):
        names = ", ".join(hidden)
        parts.append(Text(f"To see which transactions these are, you need Read on: {names}"))
    return Group(*parts)


def brokers(cluster: ClusterStatus) -> FittingTable:
    columns = ("broker>", "TxnOffsetCommit>", "ConsumerGroupHeartbeat>", "transaction.version>")
    level = cluster.transaction_version
    rows = (
        (str(one.node_id), one.txn_offset_commit, one.consumer_group_heartbeat, level)
        for one in cluster.brokers
    )
    return FittingTable(*columns, rows=rows)


def verdict(cluster: ClusterStatus) -> Text:
    if cluster.problem is not None:
        return Text(f"spark-eos can't write here: {cluster.problem}", style="red")
    version = cluster.offset_commit_version
    how = "by topic id (KIP-1319)" if version == 6 else "by topic name"
    return Text(f"Offsets are committed {how}: TxnOffsetCommit v{version}.")
