"""Members and producers of a flow, without Spark."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from spark_eos._client.settings import ClientSettings
from spark_eos._exactly_once.members import GroupMembership
from spark_eos._kafka import cluster
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.options import Limits, Transactions
from support.flow import Flow


def deadline() -> Deadline:
    """Long enough for any single call."""
    return Deadline(60, "test")


@contextmanager
def started(flow: Flow, *, also: Collection[str] = ()) -> Iterator[GroupMembership]:
    """Starts a membership that owns all partitions of the flow's source and of other topics."""
    sources = [flow.source, *also]
    with flow.connections() as connections:
        membership = GroupMembership(
            connections,
            flow.group_id,
            group_timeout_ms=60_000,
            watch=lambda: True,
            at_end=lambda: None,
        )
        topics = cluster.topics(connections, sources, deadline())
        needed = [TopicPartition(s, p) for s in sources for p in range(flow.partitions)]
        membership.start(topics, needed)
        try:
            yield membership
        finally:
            membership.leave()


def writer_settings(flow: Flow) -> WriterSettings:
    return WriterSettings(
        client=ClientSettings(flow.kafka),
        group_id=flow.group_id,
        topic=flow.target,
        transactions=Transactions(max_records=1_000, max_bytes=1 << 20),
        limits=Limits(
            connect_timeout_ms=20_000,
            max_block_ms=20_000,
            worker_directory=flow.worker_directory,
        ),
    )
