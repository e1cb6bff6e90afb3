"""The tables that show a query's status in a terminal or a notebook."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.text import Text

from spark_eos._client.printable import counted, listed, printable
from spark_eos._client.tables import FittingTable
from spark_eos._kafka.blocked_partitions import BlockedPartition
from spark_eos._kafka.cluster import by_topic
from spark_eos._kafka.groups import DescribedMember
from spark_eos._kafka.open_transactions import OpenTransaction
from spark_eos._kafka.silent_brokers import does_not_answer
from spark_eos._kafka.stored_text import ranges_of
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._status.cluster import ClusterStatus
from spark_eos._status.group_progress import MirroredPartition, PartitionStatus, StagedStatus

# The most partitions that a line names.
_NAMED = 20


def host(member: DescribedMember) -> str:
    """Return the member's host, without the slash that Java puts before an address."""
    return printable(member.client_host.removeprefix("/"))


def silent_brokers(names: Sequence[str]) -> Text:
    """Say what is unknown because brokers do not answer."""
    what = does_not_answer(names)
    unknown = "the open transactions that it coordinates and the partitions that it leads"
    return Text(f"{what[0].upper()}{what[1:]}: {unknown} are unknown", style="bold yellow")


def transactions(listed: Iterable[OpenTransaction], now: float) -> FittingTable:
    rows = (
        (
            transaction.transactional_id,
            transaction.state,
            *_times(transaction, now),
            ranges(transaction.partitions),
        )
        for transaction in listed
    )
    return FittingTable("transactional id", "state", "age>", "timeout>", "in", rows=rows)


def _times(transaction: OpenTransaction, now: float) -> tuple[str | None, str]:
    age = transaction.age(now)
    return None if age is None else duration(age), duration(transaction.timeout_ms / 1000)


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
    grouped = by_topic(partitions).items()
    return "; ".join(f"{topic} {ranges_of(numbers)}" for topic, numbers in grouped)


def members(described: Iterable[DescribedMember]) -> FittingTable:
    rows = (
        (
            member.instance_id or member.member_id,
            member.epoch,
            member.client_id,
            host(member),
            None if member.assigned is None else ranges(member.assigned) or "nothing",
        )
        for member in described
    )
    return FittingTable("member", "epoch>", "client id", "host", "assigned", rows=rows)


def partitions(statuses: Iterable[PartitionStatus], names: Mapping[str, str]) -> FittingTable:
    columns = ("topic", "partition>", "committed>", "stable end>", "end>", "lag>", "member")
    rows = (
        (
            status.topic,
            status.partition,
            status.committed,
            status.last_stable,
            status.high_watermark,
            status.lag,
            None if status.member is None else names[status.member],
        )
        for status in statuses
    )
    return FittingTable(*columns, rows=rows)


def deleted(statuses: Iterable[PartitionStatus]) -> Text:
    """Warn of records that retention deleted before the query read them."""
    lost = sorted(
        (
            (status.deleted, f"{status.topic} {status.partition}")
            for status in statuses
            if status.deleted
        ),
        reverse=True,
    )
    names = listed((f"{name} ({number:,})" for number, name in lost), _NAMED)
    total = sum(number for number, _ in lost)
    what = f"{counted(total, 'offset')} of its lag {'has' if total == 1 else 'have'} been deleted"
    return Text(f"Retention is overtaking the query: {what}: {names}", style="bold yellow")


def progress_table(pairs: Iterable[MirroredPartition]) -> FittingTable:
    columns = ("topic", "partition>", "next offset>", "progress topic", "progress>", "cluster")
    rows = (
        (pair.source.topic, pair.source.partition, pair.offset, *pair.progress, pair.source.cluster)
        for pair in pairs
    )
    return FittingTable(*columns, rows=rows)


def staged(status: StagedStatus) -> Group:
    batch = status.batch
    files = f"{status.files_written:,} of {batch.files:,}"
    columns = ("progress topic", "batch>", "rows>", "files written>", "directory")
    row = (status.topic, batch.batch, batch.rows, files, batch.directory)
    title = Text(f"Last staged batch of Spark's query {printable(batch.query)}")
    return Group(title, FittingTable(*columns, rows=[row]))


def foreign(others: Sequence[TopicPartition]) -> Text:
    names = ranges(others[:_NAMED]) + (", ..." if len(others) > _NAMED else "")
    what = counted(len(others), "offset")
    return Text(f"{what} with metadata set by another client, not by spark-eos: {names}")


def held_back(blocked: Sequence[BlockedPartition], now: float) -> Group:
    columns = ("topic", "partition>", "stable end>", "end>")
    rows = (
        (
            partition.topic,
            partition.partition,
            partition.last_stable,
            partition.high_watermark,
            partition.transaction and partition.transaction.transactional_id,
            None if partition.producer_id is None else str(partition.producer_id),
            *(
                (None, None)
                if partition.transaction is None
                else _times(partition.transaction, now)
            ),
        )
        for partition in blocked
    )
    unknown = "" if all(partition.transaction for partition in blocked) else ", or by unknown ones"
    title = f"Held back by other clients' open transactions{unknown}"
    parts: list[RenderableType] = [
        Text(f"{title}: nobody reads past the stable end", style="bold"),
        FittingTable(*columns, "held by", "producer id>", "age>", "timeout>", rows=rows),
    ]
    if hidden := sorted({partition.topic for partition in blocked if not partition.may_read}):
        names = ", ".join(hidden)
        parts.append(Text(f"To see which transactions these are, you need Read on: {names}"))
    return Group(*parts)


def brokers(cluster: ClusterStatus) -> FittingTable:
    columns = ("broker>", "TxnOffsetCommit>", "ConsumerGroupHeartbeat>", "transaction.version>")
    level = cluster.transaction_version
    rows = (
        (str(broker.node_id), broker.txn_offset_commit, broker.consumer_group_heartbeat, level)
        for broker in cluster.brokers
    )
    return FittingTable(*columns, rows=rows)


def verdict(cluster: ClusterStatus) -> Text:
    if cluster.problem is not None:
        return Text(f"spark-eos can't write here: {cluster.problem}", style="red")
    version = cluster.offset_commit_version
    how = "by topic id (KIP-1319)" if version == 6 else "by topic name"
    return Text(f"Offsets are committed {how}: TxnOffsetCommit v{version}.")
