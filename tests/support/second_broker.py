"""A second broker for an embedded one's cluster: partitions are on one of them, and it may stop."""

import base64
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka.cimpl import NewTopic

from spark_eos.testing import EmbeddedKafka
from spark_eos.testing.broker_admin import TIMEOUT, admin_client
from spark_eos.testing.broker_image import CLUSTER_ID
from spark_eos.testing.broker_properties import free_ports, write_properties
from spark_eos.testing.embedded_server import HOST

FIRST: Final = 1
SECOND: Final = 2


@contextmanager
def second_broker(first: EmbeddedKafka) -> Iterator[EmbeddedKafka]:
    """A running broker that has no controller of its own."""
    ports = free_ports()
    addresses = f"CLIENT://{HOST}:{ports.client},INTERNAL://{HOST}:{ports.internal}"
    broker = EmbeddedKafka(
        properties={
            "process.roles": "broker",
            "node.id": str(SECOND),
            "controller.quorum.voters": f"{FIRST}@{HOST}:{first._addresses().controller}",
            "listeners": addresses,
            "advertised.listeners": addresses,
        }
    )
    try:
        broker._ports = ports
        broker._data().mkdir(parents=True)
        directory_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        write_properties(
            broker._data() / "meta.properties",
            {
                "version": "1",
                "cluster.id": CLUSTER_ID,
                "node.id": str(SECOND),
                "directory.id": directory_id,
            },
        )
        broker.start()
        yield broker
    finally:
        broker.close()


def create_topic_on(first: EmbeddedKafka, name: str, brokers: Collection[int]) -> None:
    """Creates a topic of a partition on each of these brokers."""
    topic = NewTopic(
        name,
        num_partitions=len(brokers),
        replication_factor=-1,
        replica_assignment=[[broker] for broker in brokers],
    )
    admin = admin_client(first.bootstrap_servers)  # without a name it would be gone at once
    admin.create_topics([topic])[name].result(TIMEOUT)
