"""An embedded Kafka of several nodes that fail one by one."""

import functools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from kafka.protocol.metadata import CoordinatorType

from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.testing import EmbeddedKafka, KafkaNode
from spark_eos.testing.broker_admin import TIMEOUT
from spark_eos.testing.broker_leaders import TRANSACTIONS
from support.flow import consume
from support.groups import set_offsets
from support.members import deadline
from support.pages import code_blocks, run_block
from support.queries import until

# kafka-python leaves a connection unclosed on which a paused node answers nothing.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket.socket .*, raddr=:ResourceWarning")


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(nodes=3) as cluster:
        yield cluster


class _Writer:
    """Writes to its own topic, one transaction at a time."""

    def __init__(self, kafka: EmbeddedKafka, name: str) -> None:
        self.name = name
        self._servers = kafka.bootstrap_servers
        self._values: list[bytes] = []
        kafka.create_topic(name)
        settings: dict[str, Any] = {
            "bootstrap.servers": self._servers,
            "transactional.id": name,
            # A node that is paused takes requests and answers none.
            "socket.timeout.ms": 5_000,
            "log_level": 0,
        }
        self.producer = Producer(settings)
        self.producer.init_transactions(TIMEOUT)

    def write(self) -> None:
        self.producer.begin_transaction()
        self.produce()
        self.producer.commit_transaction(TIMEOUT)

    def produce(self) -> None:
        self._values.append(f"value-{len(self._values)}".encode())
        self.producer.produce(self.name, self._values[-1])
        # Beside other work another controller may take longer than half a minute.
        assert self.producer.flush(120) == 0

    def all_is_there(self) -> bool:
        return [message.value() for message in consume(self._servers, self.name)] == self._values


@contextmanager
def _away(kafka: EmbeddedKafka, node: KafkaNode, how: str) -> Iterator[None]:
    """Takes a node away, and waits until it has caught up afterwards."""
    getattr(node, how)()
    try:
        yield
    finally:
        if how == "pause":
            node.resume()
        else:
            node.start()
    kafka.wait_until_in_sync()


@pytest.mark.slow
def test_a_transaction_outlives_its_leader_and_its_coordinator(kafka: EmbeddedKafka) -> None:
    writer = _Writer(kafka, "killed")
    writer.write()
    writer.producer.begin_transaction()
    writer.produce()
    coordinator = kafka.transaction_coordinator("killed")
    kafka.move_leader("killed", 0, coordinator)
    assert kafka.leader("killed") is coordinator
    with _away(kafka, coordinator, "kill"):
        assert not kafka.is_running
        with pytest.raises(RuntimeError, match=f"Node {coordinator.id} is not running"):
            kafka.wait_until_in_sync()
        writer.produce()
        writer.producer.commit_transaction(TIMEOUT)
        assert kafka.leader("killed") is not coordinator
        assert kafka.transaction_coordinator("killed") is not coordinator
    # It has what was written without it.
    kafka.move_leader("killed", 0, coordinator)
    assert writer.all_is_there()


def test_replicas_are_as_in_production(kafka: EmbeddedKafka) -> None:
    _Writer(kafka, "replicated").write()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for topic in ("replicated", TRANSACTIONS):
        for partition in (
            admin.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions.values()
        ):
            assert sorted(partition.replicas) == [1, 2, 3]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        config = admin.describe_configs([resource])[resource].result(TIMEOUT)
        assert config["min.insync.replicas"].value == "2"


@pytest.mark.slow
def test_coordinators_are_those_named_by_kafka_and_can_be_moved(kafka: EmbeddedKafka) -> None:
    settings: dict[str, Any] = {"bootstrap.servers": kafka.bootstrap_servers}
    names = ["a", "b", "orders", "spark-eos/orders/0", "größer", "\N{PARTY POPPER}"]
    with closing(Connections(ClientSettings(settings))) as connections:

        def named(kind: CoordinatorType, name: str) -> int:
            connections.forget_coordinator(kind, name)
            return connections.find_coordinator(kind, name, deadline())

        def agree(name: str) -> bool:
            """Nodes may learn of a leader at different times."""
            group, id_ = (
                named(CoordinatorType.GROUP, name),
                named(CoordinatorType.TRANSACTION, name),
            )
            return (
                kafka.group_coordinator(name).id == group
                and kafka.transaction_coordinator(name).id == id_
            )

        for name in names:
            until(functools.partial(agree, name), lambda: "agreement", TIMEOUT)
        assert {kafka.group_partition(name)[1] for name in names} == {0, 1, 2}
        for node in kafka.nodes:
            kafka.move_leader(*kafka.group_partition("orders"), node)
            kafka.move_leader(*kafka.transaction_partition("orders"), node)
            assert kafka.group_coordinator("orders") is node
            assert kafka.transaction_coordinator("orders") is node
            until(lambda: agree("orders"), lambda: "the moved coordinator", TIMEOUT)


def test_what_there_is_not_leads_nothing(kafka: EmbeddedKafka) -> None:
    with pytest.raises(LookupError, match="no topic nowhere"):
        kafka.leader("nowhere")
    kafka.create_topic("somewhere")
    with pytest.raises(LookupError, match="no partition somewhere-1"):
        kafka.move_leader("somewhere", 1, kafka.nodes[0])
    with pytest.raises(ValueError, match="2 ports for 3 nodes"):
        EmbeddedKafka(nodes=3, advertised_port=[1, 2])
    with pytest.raises(ValueError, match="at least 1, not 0"):
        EmbeddedKafka(nodes=0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop", "pause"])
@pytest.mark.parametrize("who", ["leader", "group coordinator", "controller"])
def test_others_take_over(kafka: EmbeddedKafka, who: str, how: str) -> None:
    name = f"{who.replace(' ', '-')}-{how}"
    writer = _Writer(kafka, name)
    writer.write()

    def found() -> KafkaNode:
        if who == "leader":
            return kafka.leader(name)
        return kafka.controller() if who == "controller" else kafka.group_coordinator(name)

    if who == "group coordinator":
        set_offsets(kafka.bootstrap_servers, name, {TopicPartition(name, 0): 0})
    gone = found()
    with _away(kafka, gone, how):
        writer.write()
        # A frozen node is missed once its session is over.
        until(lambda: found() is not gone, lambda: f"another {who}", TIMEOUT)
        if how == "pause":
            with pytest.raises(TimeoutError, match="are in sync"):
                kafka.wait_until_in_sync(10)
    writer.write()
    assert writer.all_is_there()


@pytest.mark.slow
def test_a_topic_can_be_read_soon_after_its_leader_was_paused(kafka: EmbeddedKafka) -> None:
    writer = _Writer(kafka, "read")
    writer.write()
    with _away(kafka, kafka.leader("read"), "pause"):
        assert writer.all_is_there()


@pytest.mark.slow
def test_all_nodes_stop_and_start_with_their_data(kafka: EmbeddedKafka) -> None:
    writer = _Writer(kafka, "kept")
    writer.write()
    addresses = kafka.bootstrap_servers
    for end in (kafka.stop, kafka.kill):
        end()
        assert not any(node.is_running for node in kafka.nodes)
        kafka.start()
        kafka.wait_until_in_sync()
        assert kafka.bootstrap_servers == addresses
        writer.write()
    # Those that run are frozen, and all of these are woken up.
    with _away(kafka, kafka.nodes[1], "kill"):
        kafka.pause()
        kafka.resume()
        writer.write()
    assert writer.all_is_there()


@pytest.mark.slow
def test_nodes_are_upgraded_one_by_one() -> None:
    with EmbeddedKafka(nodes=3, jar_set="kafka-4.3.1") as kafka:
        writer = _Writer(kafka, "upgraded")
        for node in kafka.nodes:
            writer.write()
            node.stop()
            node.jar_set = "kafka-4.4.0"
            node.start()
            kafka.wait_until_in_sync()
        writer.write()
        assert writer.all_is_there()


@pytest.mark.slow
def test_the_page_about_testing() -> None:
    _, code = code_blocks("testing", "python")
    run_block(code, {})
