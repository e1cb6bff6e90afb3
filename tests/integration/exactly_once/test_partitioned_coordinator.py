"""A coordinator that clients can reach but other brokers can't: it continues to answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_eos._kafka.topic_partition import TopicPartition
from support.flow import Flow
from support.linked_nodes import LinkedKafka
from support.members import started


@pytest.fixture(scope="module")
def kafka() -> Iterator[LinkedKafka]:
    with LinkedKafka(nodes=3) as cluster:
        yield cluster


@pytest.mark.slow
def test_members_are_taken_over_from_its_successor(kafka: LinkedKafka, tmp_path: Path) -> None:
    """KIP-848's coordinator answers from uncommitted state and calls itself coordinator forever."""
    flow = Flow(kafka, str(tmp_path / "checkpoint"), str(tmp_path / "workers"))
    partitions = [TopicPartition(flow.source, number) for number in range(flow.partitions)]
    with started(flow):
        coordinator = kafka.group_coordinator(flow.group_id)
    # No other is connected to.
    flow.through = coordinator.bootstrap_servers
    with started(flow) as membership:
        before = membership.assignment()
        kafka.part(coordinator)
        try:
            membership.take_over_own(membership.topics, partitions)
        finally:
            kafka.join()
        now = membership.assignment()
        assert now.partitions == before.partitions == set(partitions)
        assert now.member.member_id != before.member.member_id
