"""A query's state as its cluster reports it: group, offsets, open transactions. Read-only."""

import contextlib
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from rich.console import Group, RenderableType
from rich.text import Text

from spark_eos._client.printable import counted
from spark_eos._client.settings import ClientSettings
from spark_eos._client.tables import as_html
from spark_eos._kafka import cluster, groups
from spark_eos._kafka.blocked_partitions import BlockedPartition, held_back
from spark_eos._kafka.connection import Connections, reached
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.list_offsets import EndOffsets, end_offsets, start_offsets
from spark_eos._kafka.offset_metadata import CommittedOffset
from spark_eos._kafka.open_transactions import OpenTransaction, lingering_transactions
from spark_eos._kafka.silent_brokers import SilentBrokers
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactional_ids import id_pattern
from spark_eos._status import tables
from spark_eos._status.cluster import ClusterStatus, cluster_status
from spark_eos._status.group_progress import (
    GroupProgress,
    MirroredPartition,
    PartitionStatus,
    StagedStatus,
    check_source_cluster,
)
from spark_eos.errors import SparkEosError, TopicNotFoundError


class UnknownGroupError(SparkEosError):
    """The cluster has no consumer group with this name."""

    entry = "EOS21"


@dataclass(frozen=True)
class Status:
    """A query as its cluster sees it; a notebook shows it as tables.

    Attributes:
        group_id: The consumer group.
        prefix: The transactional id prefix.
        taken_at: Time of the request, in seconds since 1970.
        group: State, epochs and members. If its coordinator does not answer, there is no state, and
            there are no partitions.
        partitions: All partitions of topics in which the group has offsets or assignments, except
            progress topics, whose offsets are not positions in their logs. For a mirrored query,
            the source partitions that the progress partitions stand for. For a staged query, the
            positions in its sources that it publishes after each batch, for monitoring only.
        mirrored: The source partitions of a mirrored query; empty for any other query.
        staged: The last staged batch; None if the query does not stage its batches.
        foreign: Partitions of the group whose offsets have metadata of another client.
        transactions: The query's open transactions, oldest first.
        held_back: Partitions of the sources, and of the requested targets, that are held back by
            transactions of other or unknown clients: nobody reads past these transactions with
            read_committed.
        cluster: The brokers' versions.
        silent: Brokers that do not answer, such as ``2 (host:9092)``. The open transactions and
            partition ends that only these brokers know are missing here.
    """

    group_id: str
    prefix: str
    taken_at: float
    group: groups.DescribedGroup
    partitions: tuple[PartitionStatus, ...]
    mirrored: tuple[MirroredPartition, ...]
    staged: StagedStatus | None
    foreign: tuple[TopicPartition, ...]
    transactions: tuple[OpenTransaction, ...]
    held_back: tuple[BlockedPartition, ...]
    cluster: ClusterStatus
    silent: tuple[str, ...] = ()

    @property
    def delivery(self) -> str | None:
        """The query's delivery, "mirrored" or "staged"; None if the group's offsets don't tell."""
        if self.mirrored:
            return "mirrored"
        return None if self.staged is None else "staged"

    @property
    def lag(self) -> int | None:
        """The sum over all partitions whose lag is known; None if no lag is known."""
        known = [partition.lag for partition in self.partitions if partition.lag is not None]
        return sum(known) if known else None

    def __rich__(self) -> Group:
        """Return all tables, most important first, separated by empty lines."""
        parts: list[RenderableType] = [self._headline()]
        if self.group.members:
            parts.append(tables.members(self.group.members))
        if self.partitions:
            names = {m.member_id: m.instance_id or m.member_id for m in self.group.members}
            parts.append(tables.partitions(self.partitions, names))
        if any(partition.deleted for partition in self.partitions):
            parts.append(tables.deleted(self.partitions))
        if self.staged is not None:
            parts.append(tables.staged(self.staged))
        if self.foreign:
            parts.append(tables.foreign(self.foreign))
        if self.transactions:
            parts.append(Group(self._open(), tables.transactions(self.transactions, self.taken_at)))
        else:
            whose = f"open transactions of prefix {self.prefix} and group {self.group_id}"
            unknown = f"It is unknown whether there are {whose}."
            parts.append(Text(unknown if self.silent else f"No {whose}."))
        if self.held_back:
            parts.append(tables.held_back(self.held_back, self.taken_at))
        if self.silent:
            parts.append(tables.silent_brokers(self.silent))
        parts.append(Group(tables.brokers(self.cluster), tables.verdict(self.cluster)))
        return Group(parts[0], *(piece for part in parts[1:] for piece in (Text(), part)))

    def _headline(self) -> Text:
        group = self.group
        line = Text()
        line.append(f"Group {self.group_id}", style="bold")
        line.append(f": {group.state or 'unknown, its coordinator does not answer'}")
        if group.state is None:
            return line.append(", lag unknown")
        if group.epoch is None:
            line.append(", classic protocol: no spark-eos query uses this group")
        else:
            line.append(f", group epoch {group.epoch}, assignment epoch {group.assignment_epoch}")
        if self.delivery is not None:
            line.append(f", delivery {self.delivery}")
        least = "at least " if self.silent else ""
        lag = "unknown" if self.lag is None else f"{least}{self.lag:,}"
        line.append(f", {counted(len(group.members), 'member')}, lag {lag}")
        if self.mirrored and all(partition.lag is None for partition in self.partitions):
            line.append(" (known only with --source-bootstrap-servers)")
        return line

    def _open(self) -> Text:
        text = Text(f"{counted(len(self.transactions), 'open transaction')}", style="bold")
        if self.group.state is not None and not self.group.members:
            text.append(
                "; no query is running: the next start ends them, spark-eos abort ends them now",
                style="not bold",
            )
        return text

    def _repr_html_(self) -> str:
        return as_html(self)


def ask_status(
    client: ClientSettings,
    group_id: str,
    prefix: str,
    seconds: float,
    limit: str,
    *,
    source_client: ClientSettings | None = None,
    targets: Collection[str] = (),
    check_targets: bool = False,
) -> Status:
    """Ask a cluster about a query, without joining, fencing or creating anything.

    With ``check_targets``, each target must exist.
    """
    # The requests are sent one after the other, so a running query moves on between them.
    # ``seconds`` applies to reaching the cluster, and then again to everything else; ``limit`` is
    # the name of that setting.
    with contextlib.ExitStack() as stack:
        connections = stack.enter_context(reached(client, seconds, limit))
        source = None
        if source_client is not None:
            source = Connections(source_client, request_timeout=min(10.0, seconds))
            stack.enter_context(contextlib.closing(source))
        deadline = Deadline(seconds, limit)
        if check_targets:
            _check_exist(connections, targets, deadline)
        return _status(connections, group_id, prefix, deadline, source, targets)


def _check_exist(connections: Connections, topics: Collection[str], deadline: Deadline) -> None:
    found = cluster.topics(connections, topics, deadline) if topics else {}
    if missing := sorted({*topics} - found.keys()):
        raise TopicNotFoundError(f"topic {missing[0]!r} does not exist")


def _status(
    connections: Connections,
    group_id: str,
    prefix: str,
    deadline: Deadline,
    source_connections: Connections | None,
    targets: Collection[str],
) -> Status:
    silent = SilentBrokers(connections)
    transactions = lingering_transactions(connections, prefix, group_id, deadline, silent)
    group = groups.describe_if_known(connections, group_id, deadline, silent)
    known = group is not groups.UNKNOWN
    if known and group.state is None:
        left = f"; open transactions of prefix {prefix!r} and this group: {len(transactions)}"
        raise UnknownGroupError(
            f"group {group_id!r} does not exist on {connections.bootstrap_servers}: no query has "
            "run with this group_id, or its offsets have expired"
            + (f"{left}, which spark-eos abort ends" if transactions else "")
        )
    # Instance ids end in a number, so sort by length first: shorter ids have lower numbers.
    members = sorted(
        group.members, key=lambda m: (len(m.instance_id or ""), m.instance_id or m.member_id)
    )
    # Read the committed offsets first, so that none is newer than its partition's end.
    progress = GroupProgress.read(connections, group_id, deadline) if known else GroupProgress({})
    assigned = {p: m.member_id for m in members for p in m.assigned or ()}
    read = {topic for topic, _ in [*progress.committed, *assigned]}
    sources = read - progress.progress_topics
    ends = end_offsets(connections, sources | {*targets}, deadline, silent=silent)
    starts = start_offsets(connections, sources, deadline, silent=silent)
    own = re.compile(id_pattern(prefix, group_id))
    others = tuple(
        blocked
        for blocked in held_back(connections, ends, deadline, silent)
        # Compare transactional ids, because a running query may have begun other transactions
        # meanwhile.
        if blocked.transaction is None or not own.fullmatch(blocked.transaction.transactional_id)
    )
    partitions = [
        _partition(
            partition,
            progress.committed.get(partition),
            starts.get(partition),
            ends.get(partition),
            assigned.get(partition),
        )
        for partition in sorted({*progress.committed, *assigned, *ends})
        if partition.topic in sources
    ]
    source_starts: Mapping[TopicPartition, int] = {}
    source_ends: Mapping[TopicPartition, EndOffsets | None] = {}
    silent_sources: tuple[str, ...] = ()
    if source_connections is not None and progress.mirrored:
        found = cluster.cluster_id(source_connections, deadline)
        check_source_cluster(progress.mirrored, found)
        silent_there = SilentBrokers(source_connections)
        topics = {pair.source.topic for pair in progress.mirrored}
        source_ends = end_offsets(source_connections, topics, deadline, silent=silent_there)
        source_starts = start_offsets(source_connections, topics, deadline, silent=silent_there)
        others += held_back(source_connections, source_ends, deadline, silent_there)
        silent_sources = silent_there.names
    for pair in progress.mirrored:
        source, committed = pair.source.topic_partition, progress.committed[pair.progress]
        member = assigned.get(pair.progress)
        partitions.append(
            _partition(
                source, committed, source_starts.get(source), source_ends.get(source), member
            )
        )
    features = cluster.features_of_brokers(silent, deadline)
    return Status(
        group_id=group_id,
        prefix=prefix,
        taken_at=time.time(),
        group=replace(group, members=tuple(members)),
        partitions=tuple(partitions),
        mirrored=progress.mirrored,
        staged=progress.staged,
        foreign=progress.foreign,
        transactions=transactions,
        held_back=others,
        cluster=cluster_status(features, connections.principal),
        silent=(*silent.names, *silent_sources),
    )


def _partition(
    partition: TopicPartition,
    committed: CommittedOffset | None,
    start: int | None,
    end: EndOffsets | None,
    member: str | None,
) -> PartitionStatus:
    last_stable, high_watermark = end or (None, None)
    offset = None if committed is None else committed.offset
    return PartitionStatus(*partition, offset, last_stable, high_watermark, member, start)
