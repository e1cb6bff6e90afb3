"""A node that lacks committed records becomes a target partition's leader."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka import KafkaAdminClient, TopicPartition

from spark_eos.testing import EmbeddedKafka, KafkaNode
from spark_eos.testing.broker_admin import TIMEOUT, admin_client
from support.flow import Flow
from support.queries import until
from support.runs import running, values_up_to

pytestmark = [
    pytest.mark.slow,
    # kafka-python leaves a connection unclosed to a node that is killed.
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket .*, raddr=:ResourceWarning"),
]


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(nodes=3) as cluster:
        yield cluster


def _on_two_nodes(kafka: EmbeddedKafka, topic: str, nodes: list[KafkaNode]) -> None:
    """One in-sync replica is enough, and an out-of-sync replica may lead."""
    wanted = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in wanted.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = admin_client(kafka.direct_servers)
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT)
    ids = [node.id for node in nodes]
    with closing(KafkaAdminClient(bootstrap_servers=kafka.direct_servers.split(","))) as client:
        client.alter_partition_reassignments({TopicPartition(topic, 0): ids})

    def moved() -> bool:
        found = admin.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions[0]
        return sorted(found.replicas) == sorted(found.isrs) == sorted(ids)

    until(moved, lambda: f"{topic} on {ids}", TIMEOUT)
    kafka.move_leader(topic, 0, nodes[0])


def test_what_the_cluster_loses_is_lost_and_nothing_else(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    flow = Flow(kafka, str(tmp_path / "c"), str(tmp_path / "w"), partitions=1)
    first, second, _ = kafka.nodes
    _on_two_nodes(kafka, flow.target, [first, second])
    with running(flow) as runs:
        runs.batch(5)
        second.kill()
        until(lambda: kafka.leader(flow.target) is first, lambda: "its leader")
        # Only the first node has these.
        runs.batch(9)
        first.kill()
        second.start()
        until(lambda: kafka.leader(flow.target) is second, lambda: "an unclean election", 120)
        runs.batch(12)
        first.start()
        kafka.wait_until_in_sync()
        runs.batch(15)
    lost = {f"0/{offset}" for offset in range(5, 9)}
    assert sorted(flow.values()) == [v for v in values_up_to(15) if v not in lost]
    assert flow.committed() == {0: 15}
    assert flow.open_transactions() == []
