"""A query's status as tables, for a terminal or a notebook."""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from spark_eos._admin.group_progress import MirroredPartition, StagedStatus
from spark_eos._client.printable import counted, printable
from spark_eos._client.tables import FittingTable
from spark_eos._kafka.cluster import by_topic
from spark_eos._kafka.groups import DescribedMember
from spark_eos._kafka.held_back import HeldBack
from spark_eos._kafka.open_transactions import OpenTransaction
from spark_eos._kafka.silent_brokers import does_not_answer
from spark_eos._kafka.topic_partition import TopicPartition

if TYPE_CHECKING:  # Which shows itself with these tables.
    from spark_eos._admin.status import ClusterStatus, PartitionStatus, Status

# A line names at most so many partitions.
_NAMED = 20


def status_tables(status: "Status") -> Group:
    """Returns all tables, most important first, separated by empty lines."""
    parts: list[RenderableType] = [_headline(status)]
    if status.group.members:
        parts.append(_members(status.group.members))
    if status.partitions:
        names = {m.member_id: m.instance_id or m.member_id for m in status.group.members}
        parts.append(_partitions(status.partitions, names))
    if status.staged is not None:
        parts.append(_staged(status.staged))
    if status.foreign:
        parts.append(_foreign(status.foreign))
    if status.transactions:
        parts.append(Group(_open(status), transactions(status.transactions, status.taken_at)))
    else:
        parts.append(Text(_none_open(status)))
    if status.held_back:
        parts.append(_held_back(status.held_back, status.taken_at))
    if status.silent:
        parts.append(silent_brokers(status.silent))
    parts.append(Group(_brokers(status.cluster), _verdict(status.cluster)))
    return Group(parts[0], *(piece for part in parts[1:] for piece in (Text(), part)))


def host(member: DescribedMember) -> str:
    """Returns the member's host, without the slash that Java puts before an address."""
    return printable(member.client_host.removeprefix("/"))


def silent_brokers(names: Sequence[str]) -> Text:
    """Says what is not known, since brokers do not answer."""
    what = does_not_answer(names)
    unknown = "the open transactions that it coordinates and the partitions that it leads"
    return Text(f"{what[0].upper()}{what[1:]}: {unknown} are unknown", style="bold yellow")


def _open(status: "Status") -> Text:
    text = Text(f"{counted(len(status.transactions), 'open transaction')}", style="bold")
    if status.group.state is not None and not status.group.members:
        text.append(
            "; no query is running: the next start ends them, spark-eos abort ends them now",
            style="not bold",
        )
    return text


def _none_open(status: "Status") -> str:
    return f"No open transactions of prefix {status.prefix} and group {status.group_id}."


def transactions(found: Iterable[OpenTransaction], now: float) -> FittingTable:
    """Returns a table of open transactions, with their ages at ``now`` (seconds since 1970)."""
    table = FittingTable("transactional id", "state", "age>", "timeout>", "in")
    for one in found:
        age = one.age(now)
        table.add(
            one.transactional_id,
            one.state,
            None if age is None else duration(age),
            duration(one.timeout_ms / 1000),
            ranges(one.partitions),
        )
    return table


def duration(seconds: float) -> str:
    """Formats seconds in their two largest units: ``12 s``, ``3 min 20 s``, ``2 d 4 h``."""
    whole = int(seconds)
    units = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    for (size, name), (next_size, next_name) in pairwise(units):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {name}" + (f" {rest} {next_name}" if rest else "")
    return f"{whole} s"


def ranges(partitions: Iterable[TopicPartition]) -> str:
    """Formats partitions by topic as ranges: ``orders 0-3,7``."""
    found = []
    for topic, numbers in by_topic(partitions).items():
        spans = []
        # In a run of consecutive numbers, number minus index is constant.
        for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
            span = [number for _, number in run]
            spans.append(f"{span[0]}-{span[-1]}" if len(span) > 1 else f"{span[0]}")
        found.append(f"{topic} {','.join(spans)}")
    return "; ".join(found)


def _headline(status: "Status") -> Text:
    group = status.group
    line = Text()
    line.append(f"Group {status.group_id}", style="bold")
    line.append(f": {group.state or 'unknown, its coordinator does not answer'}")
    if group.state is None:
        return line.append(", lag unknown")
    if group.epoch is None:
        line.append(", classic protocol: no spark-eos query uses this group")
    else:
        line.append(f", group epoch {group.epoch}, assignment epoch {group.assignment_epoch}")
    if status.delivery is not None:
        line.append(f", delivery {status.delivery}")
    least = "at least " if status.silent else ""
    lag = "unknown" if status.lag is None else f"{least}{status.lag:,}"
    line.append(f", {counted(len(group.members), 'member')}, lag {lag}")
    if status.mirrored and all(partition.lag is None for partition in status.partitions):
        line.append(" (of the source only with --source-bootstrap-servers)")
    return line


def _members(members: Iterable[DescribedMember]) -> FittingTable:
    table = FittingTable("member", "epoch>", "client id", "host", "assigned")
    for member in members:
        table.add(
            member.instance_id or member.member_id,
            member.epoch,
            member.client_id,
            host(member),
            None if member.assigned is None else ranges(member.assigned) or "nothing",
        )
    return table


def _partitions(found: "Iterable[PartitionStatus]", names: dict[str, str]) -> FittingTable:
    table = FittingTable(
        "topic",
        "partition>",
        "committed>",
        "stable end>",
        "end>",
        "lag>",
        "member",
    )
    for one in found:
        table.add(
            one.topic,
            one.partition,
            one.committed,
            one.last_stable,
            one.high_watermark,
            one.lag,
            None if one.member is None else names[one.member],
        )
    return table


def progress_table(found: Iterable[MirroredPartition]) -> FittingTable:
    """Returns a table of a mirrored query's source partitions."""
    table = FittingTable(
        "topic", "partition>", "next offset>", "progress topic", "progress>", "cluster"
    )
    for one in found:
        source = one.source
        table.add(source.topic, source.partition, one.offset, *one.progress, source.cluster)
    return table


def _staged(staged: StagedStatus) -> Group:
    batch = staged.batch
    table = FittingTable("progress topic", "batch>", "rows>", "files written>", "directory")
    table.add(
        staged.topic,
        batch.batch,
        batch.rows,
        f"{staged.files_written:,} of {batch.files:,}",
        batch.directory,
    )
    return Group(Text(f"Last staged batch of Spark's query {printable(batch.query)}"), table)


def _foreign(partitions: Sequence[TopicPartition]) -> Text:
    names = ranges(partitions[:_NAMED]) + (", ..." if len(partitions) > _NAMED else "")
    what = counted(len(partitions), "offset")
    return Text(f"{what} with a text that is not spark-eos', set by another client: {names}")


def _held_back(found: Iterable[HeldBack], now: float) -> Group:
    table = FittingTable(
        "topic", "partition>", "stable end>", "end>", "held by", "producer id>", "age>", "timeout>"
    )
    hidden = set()
    for one in found:
        age = None if one.transaction is None else one.transaction.age(now)
        table.add(
            one.topic,
            one.partition,
            one.last_stable,
            one.high_watermark,
            None if one.transaction is None else one.transaction.transactional_id,
            None if one.producer_id is None else str(one.producer_id),
            None if age is None else duration(age),
            None if one.transaction is None else duration(one.transaction.timeout_ms / 1000),
        )
        if not one.may_read:
            hidden.add(one.topic)
    title = "Held back by other clients' open transactions: nobody reads past the stable end"
    parts: list[RenderableType] = [Text(title, style="bold"), table]
    if hidden:
        names = ", ".join(sorted(hidden))
        parts.append(Text(f"To see which transactions these are, you need Read on: {names}"))
    return Group(*parts)


def _brokers(cluster: "ClusterStatus") -> FittingTable:
    table = FittingTable(
        "broker>", "TxnOffsetCommit>", "ConsumerGroupHeartbeat>", "transaction.version>"
    )
    for one in cluster.brokers:
        table.add(
            str(one.node_id),
            one.txn_offset_commit,
            one.consumer_group_heartbeat,
            cluster.transaction_version,
        )
    return table


def _verdict(cluster: "ClusterStatus") -> Text:
    if cluster.problem is not None:
        return Text(f"spark-eos can't write here: {cluster.problem}", style="red")
    version = cluster.offset_commit_version
    how = "by topic id (KIP-1319)" if version == 6 else "by topic name"
    return Text(f"Offsets are committed {how}: TxnOffsetCommit v{version}.")
