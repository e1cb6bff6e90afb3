"""Members and producers of a flow, without Spark."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.client.settings import ClientSettings
from spark_eos.driver.membership import GroupCoordinator
from spark_eos.kafka import cluster
from spark_eos.kafka.deadline import Deadline
from support.flow import Flow


def deadline() -> Deadline:
    """Long enough for any one call."""
    return Deadline(20, "test")


@contextmanager
def started(
    flow: Flow, members: int = 64, *, also: Collection[str] = ()
) -> Iterator[GroupCoordinator]:
    """A coordinator whose members have all partitions of the flow's source, and of others."""
    sources = [flow.source, *also]
    with flow.wire() as wire:
        coordinator = GroupCoordinator(
            wire,
            flow.group_id,
            most_members=members,
            group_timeout=20,
            watch=lambda: True,
            at_end=lambda: None,
        )
        topics = cluster.topics(wire, sources, deadline())
        coordinator.start(topics, [(s, p) for s in sources for p in range(flow.partitions)])
        try:
            yield coordinator
        finally:
            coordinator.leave()


def writer_settings(flow: Flow) -> WriterSettings:
    """Settings as ExactlyOnceSink makes them."""
    return WriterSettings(
        client=ClientSettings(flow.kafka),
        group_id=flow.group_id,
        topic=flow.target,
        transactional_id_prefix="spark-eos",
        transaction_timeout_ms=60_000,
        chunk_records=1_000,
        chunk_bytes=1 << 20,
        chunk_ms=10_000,
        worker_directory=flow.worker_directory,
        connect_timeout=20,
        max_block_ms=20_000,
        metadata_max_idle_ms=300_000,
        fail_on_data_loss=True,
    )
