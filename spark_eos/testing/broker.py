"""A real Kafka for tests, which starts in about a second and leaves nothing behind."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka.admin import AdminClient

from spark_eos.testing import broker_admin
from spark_eos.testing.broker_leaders import GROUPS, TRANSACTIONS, Leaders
from spark_eos.testing.broker_node import DEFAULT_HEAP, KafkaNode, NodeSettings
from spark_eos.testing.broker_properties import cluster_ports
from spark_eos.testing.broker_security import BrokerSecurity
from spark_eos.testing.embedded_server import on_free_ports, start_together

KAFKA_VARIABLE = "SPARK_EOS_KAFKA"
_NEWEST = "4.4.0"
_LAST_PORT = 65_535


def kafka_version() -> str:
    """Return the default broker version: ``$SPARK_EOS_KAFKA``, or 4.4.0."""
    return os.environ.get(KAFKA_VARIABLE) or _NEWEST


class EmbeddedKafka:
    """A Kafka cluster of one or more nodes on 127.0.0.1, with its data in a temporary directory.

    Use it as a context manager, or call `start` and `close`. JVMs are stopped and their data
    is deleted when the Python process ends, even if it is killed with SIGKILL. The class is not
    thread-safe.

    The first start on a machine downloads the broker (43 MB) and prepares it for quick starts,
    which takes half a minute; later starts take about a second.

    With three nodes, failures have the same effects as in a production cluster: topics, group
    offsets and transaction states have three replicas, of which two must be in sync, and another
    node takes over. The methods of this class act on all nodes; `nodes` gives access to each.

    Args:
        nodes: Number of nodes, each a broker and a controller in its own JVM. With fewer than
            three nodes, there are as many replicas as nodes, and one must be in sync.
        properties: Broker settings that override the defaults (see `broker_properties.BASE`).
        security: Secured listeners besides the plaintext one for clients, their users, and
            whether there is an authorizer.
        features: Levels of Kafka features to format the data with, such as
            ``{"transaction.version": 1}``; by default the newest.
        jar_set: The broker's jars, by the name of their lock file; by default the jars of
            `kafka_version`.
        heap: Maximum heap of each JVM, as in ``-Xmx``. With few records, a node uses about 200 MB
            of memory.
        port: Client port of the first node; the other nodes use the ports that follow it. By
            default, free ports are chosen.
        advertised_port: Port to which clients are redirected once connected, such as that of a
            proxy in front of the broker; or a list with a port for each node. By default the
            client port.
        start_timeout: Seconds within which a start must succeed.

    Attributes:
        nodes: The nodes; ``nodes[0]`` has the id 1.

    Raises:
        ValueError: `nodes` is less than 1, the number of advertised ports differs from `nodes`, or
            `port` leaves too few ports for all nodes.
        BrokerStartError: From `start`: Kafka does not start; the message ends with its log, or
            says that `port` is in use.
        spark_eos._jars.jar_sets.JarError: From `start`: a jar's checksum differs from the lock's.
        spark_eos._jars.ivy.DownloadError: From `start`: the broker's jars could not be downloaded.
        spark_eos._jars.java.JavaError: From `start`: there is no Java 17 or newer.

    Examples:
        ::

            with EmbeddedKafka() as kafka:
                kafka.create_topic("orders", partitions=4)
                producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

        A producer's transactions outlive their coordinator::

            with EmbeddedKafka(nodes=3) as kafka:
                kafka.transaction_coordinator("payments").kill()
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        properties: Mapping[str, str] | None = None,
        security: BrokerSecurity | None = None,
        features: Mapping[str, int] | None = None,
        jar_set: str | None = None,
        heap: str = DEFAULT_HEAP,
        port: int | None = None,
        advertised_port: int | Sequence[int] | None = None,
        start_timeout: float = 60,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"nodes must be at least 1, not {nodes}")
        if port is not None and port + nodes - 1 > _LAST_PORT:
            raise ValueError(f"port is {port}, which leaves too few ports for {nodes} nodes")
        if isinstance(advertised_port, int):
            advertised_port = [advertised_port]
        self._advertised = [None] * nodes if advertised_port is None else list(advertised_port)
        if len(self._advertised) != nodes:
            raise ValueError(f"advertised_port has {len(self._advertised)} ports for {nodes} nodes")
        self._clients = [None if port is None else port + n for n in range(nodes)]
        self._security = security
        settings = NodeSettings(
            dict(properties or {}), security, dict(features or {}), heap, start_timeout
        )
        jars = jar_set or f"kafka-{kafka_version()}"
        self.nodes = tuple(
            self._new_node(id_, jars, settings, client)
            for id_, client in enumerate(self._clients, 1)
        )
        self._admin: AdminClient | None = None

    def __enter__(self) -> "EmbeddedKafka":
        """Start the cluster."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the cluster and remove its data."""
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """Addresses for clients, ``127.0.0.1:PORT,...``; restarts keep them."""
        return ",".join(node.bootstrap_servers for node in self.nodes)

    @property
    def direct_servers(self) -> str:
        """Addresses of internal listeners: always plaintext, never behind a proxy."""
        return ",".join(node.direct_servers for node in self.nodes)

    def servers_of(self, listener: str) -> str:
        """Return the addresses of a secured listener; restarts keep them."""
        return ",".join(node.servers_of(listener) for node in self.nodes)

    @property
    def pid(self) -> int:
        """Process id of the first node's JVM."""
        return self.nodes[0].pid

    @property
    def is_running(self) -> bool:
        """True if all nodes' JVMs are alive, even if they are paused."""
        return all(node.is_running for node in self.nodes)

    def start(self) -> None:
        """Start all stopped nodes, with their data and ports, and wait until they are ready.

        Raises:
            RuntimeError: All nodes are already running.
        """
        if self.is_running:
            raise RuntimeError("The broker is already running")
        stopped = [node for node in self.nodes if not node.is_running]
        first = not any(node.has_run for node in self.nodes)

        def start() -> None:
            if first:
                secured = () if self._security is None else tuple(self._security.listeners)
                ports = cluster_ports(self._clients, self._advertised, secured)
                for node in self.nodes:
                    node.settle(ports)
                self._admin = None  # it still has the earlier ports
            start_together(stopped, self._create_credentials)

        # Another process may take a port between our choice and Kafka's start.
        on_free_ports(attempts=5 if first else 1)(start)

    def prepare(self) -> None:
        """Download the jars and archive their classes, as the first start would do."""
        self.nodes[0].prepare()

    def stop(self, grace: float = 10) -> None:
        """Stop all nodes with SIGTERM, and with SIGKILL after `grace` seconds; keep the data."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.stop(grace), self.nodes))
        self._admin = None

    def kill(self) -> None:
        """End all nodes with SIGKILL; keep the data."""
        for node in self.nodes:
            node.kill()
        self._admin = None

    def pause(self) -> None:
        """Freeze all running nodes with SIGSTOP: connections stay open, but nobody answers."""
        for node in self._running():
            node.pause()

    def resume(self) -> None:
        """Resume all running nodes with SIGCONT after `pause`."""
        for node in self._running():
            node.resume()

    def close(self) -> None:
        """End all nodes and remove their data; only `log` still works."""
        self._admin = None
        for node in self.nodes:
            node.close()

    def log(self) -> str:
        """Return the nodes' logs since the first start, one after the other."""
        return "".join(node.log() for node in self.nodes)

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until it can be used.

        Raises:
            confluent_kafka.KafkaException: The broker refuses the request.
        """
        broker_admin.create_topic(self._administration(), name, partitions, config or {})

    def add_partitions(self, name: str, total: int) -> None:
        """Increase a topic's number of partitions to `total` and wait until they can be used.

        Raises:
            confluent_kafka.KafkaException: The broker refuses the request.
        """
        broker_admin.add_partitions(self._administration(), name, total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone.

        Raises:
            confluent_kafka.KafkaException: The broker refuses the request.
        """
        broker_admin.delete_topic(self._administration(), name)

    def leader(self, topic: str, partition: int = 0) -> KafkaNode:
        """Return the node that leads a partition, as soon as it has a leader.

        Raises:
            LookupError: There is no such partition.
            TimeoutError: The partition has no leader after 30 s.
        """
        return self._node(self._leaders().leader(topic, partition))

    def group_coordinator(self, group_id: str) -> KafkaNode:
        """Return the node that coordinates a group.

        Raises the same errors as `leader`: LookupError if there has been no group yet.
        """
        return self.leader(*self.group_partition(group_id))

    def transaction_coordinator(self, transactional_id: str) -> KafkaNode:
        """Return the node that coordinates a transactional id.

        Raises the same errors as `leader`: LookupError if there has been no transaction yet.
        """
        return self.leader(*self.transaction_partition(transactional_id))

    def group_partition(self, group_id: str) -> tuple[str, int]:
        """Return the partition of ``__consumer_offsets`` whose leader coordinates a group.

        Raises:
            LookupError: There has been no group in this cluster.

        Examples:
            ::

                kafka.move_leader(*kafka.group_partition("orders"), kafka.nodes[2])
        """
        return GROUPS, self._leaders().coordinating(GROUPS, group_id)

    def transaction_partition(self, transactional_id: str) -> tuple[str, int]:
        """Return the partition of ``__transaction_state`` whose leader coordinates an id.

        Raises:
            LookupError: There has been no transaction in this cluster.

        Examples:
            ::

                kafka.move_leader(*kafka.transaction_partition("payments"), kafka.nodes[2])
        """
        return TRANSACTIONS, self._leaders().coordinating(TRANSACTIONS, transactional_id)

    def controller(self) -> KafkaNode:
        """Return the node that is the active controller."""
        return self._node(self._leaders().controller())

    def move_leader(self, topic: str, partition: int, to: KafkaNode) -> None:
        """Make a node the preferred replica of a partition, and have it elected as the leader.

        Raises:
            LookupError: There is no such partition.
            TimeoutError: The node does not lead the partition after 30 s.
        """
        self._leaders().move(topic, partition, to.id)

    def wait_until_in_sync(self, timeout: float = 60) -> None:
        """Wait until all replicas are in sync, for example before restarting the next node.

        Args:
            timeout: Seconds to wait.

        Raises:
            RuntimeError: A node is not running.
            TimeoutError: Replicas are out of sync after the timeout; the message says which.
        """
        for node in self.nodes:
            if not node.is_running:
                raise RuntimeError(f"Node {node.id} is not running: call its start()")
        self._leaders(timeout).await_in_sync()

    def _leaders(self, timeout: float = broker_admin.TIMEOUT) -> Leaders:
        return Leaders(self.direct_servers, timeout)

    def _new_node(
        self, id_: int, jar_set: str, settings: NodeSettings, port: int | None
    ) -> KafkaNode:
        return KafkaNode(id_, jar_set, settings, port=port)

    def _create_credentials(self) -> None:
        if self._security is not None:
            self._security.create_credentials(self._administration())

    def _node(self, id_: int) -> KafkaNode:
        return self.nodes[id_ - 1]

    def _running(self) -> list[KafkaNode]:
        running = [node for node in self.nodes if node.is_running]
        if not running:
            raise RuntimeError("The broker is not running; call start()")
        return running

    def _administration(self) -> AdminClient:
        self._running()
        if self._admin is None:
            self._admin = broker_admin.admin_client(self.direct_servers)
        return self._admin
