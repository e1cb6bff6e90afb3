"""One node of an embedded Kafka: a broker and a controller in their own JVM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from spark_eos.testing import broker_admin
from spark_eos.testing.broker_image import BrokerStartError, broker_image, command, create_data
from spark_eos.testing.broker_properties import (
    Ports,
    broker_properties,
    free_ports,
    write_properties,
)
from spark_eos.testing.broker_security import BrokerSecurity
from spark_eos.testing.embedded_server import HOST, EmbeddedServer, ServerImage

DEFAULT_HEAP: Final = "256m"
_STARTED: Final = "Kafka Server started"
_TRAINING_TIMEOUT: Final = 180.0


@dataclass(frozen=True)
class NodeSettings:
    """Settings that all nodes of a cluster share; see `EmbeddedKafka`."""

    properties: Mapping[str, str]
    security: BrokerSecurity | None
    features: Mapping[str, int]
    heap: str
    start_timeout: float


class KafkaNode(EmbeddedServer):
    """A node of an `EmbeddedKafka`, which creates its nodes; each is a broker and a controller.

    `kill`, `stop` and `pause` take the node offline; `start` and `resume` bring it back with its
    data and addresses. Meanwhile, the other nodes lead its partitions if more than half are
    running; if not, start the missing nodes together, with `EmbeddedKafka.start`.

    Attributes:
        id: The ``node.id``: 1 for the first node.
        jar_set: The node's jars, by the name of their lock file. To upgrade a stopped node, assign
            another jar set before its next start.

    Examples:
        ::

            with EmbeddedKafka(nodes=3) as kafka:
                kafka.create_topic("orders")
                leader = kafka.leader("orders", 0)
                leader.kill()
                leader.start()
                kafka.wait_until_in_sync()
    """

    def __init__(
        self, id_: int, jar_set: str, settings: NodeSettings, *, port: int | None = None
    ) -> None:
        super().__init__(
            "broker", BrokerStartError, port=port, start_timeout=settings.start_timeout
        )
        self.id = id_
        self.jar_set = jar_set
        self._settings = settings
        self._cluster: tuple[Ports, ...] = ()
        self._ready: AdminClient | None = None  # asks whether the node is ready

    def __repr__(self) -> str:
        """Return the node's id and process id."""
        return f"KafkaNode({self.id}, pid={self.pid if self.is_running else None})"

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients, ``127.0.0.1:PORT``; restarts keep it."""
        return f"{HOST}:{self.ports.client}"

    @property
    def direct_servers(self) -> str:
        """Address of the internal listener: always plaintext, never behind a proxy."""
        return f"{HOST}:{self.ports.internal}"

    def servers_of(self, listener: str) -> str:
        """Return the address of a secured listener, which is the same after a restart."""
        return f"{HOST}:{self.ports.secured[listener]}"

    @property
    def has_run(self) -> bool:
        """True if the node has data from an earlier start."""
        return self._has_run

    @property
    def ports(self) -> Ports:
        """The node's ports."""
        if not self._cluster:
            raise RuntimeError("The broker has no address before its cluster's first start()")
        return self._cluster[self.id - 1]

    def settle(self, cluster: tuple[Ports, ...]) -> None:
        """Set the ports of all nodes, in order, for the next start and later ones."""
        self._cluster = cluster

    def _image(self) -> ServerImage:
        return broker_image(self.jar_set)

    def _begin(self, image: ServerImage, options: Sequence[str] = ()) -> None:
        given, data = self._settings, self._data()
        self._ready = broker_admin.admin_client(self.direct_servers)
        if not data.exists():
            create_data(image, data, self.id, given.features, given.properties)
        properties = self._directory() / "server.properties"
        write_properties(properties, self._properties())
        if given.security is not None:
            options = [*options, *given.security.jvm_options]
        self._launch(
            command(image, "kafka.Kafka", str(properties), heap=given.heap, options=options)
        )

    def _properties(self) -> dict[str, str]:
        given = self._settings
        return broker_properties(
            self.id, self._cluster, self._data(), given.properties, given.security
        )

    def _is_ready(self, log: str) -> bool:
        return (
            _STARTED in log
            and self._ready is not None
            and broker_admin.answers(self._ready, self.id)
        )

    def _await_ready(self, together: Sequence[EmbeddedServer] = ()) -> None:
        super()._await_ready(together)
        self._ready = None

    def _hint(self) -> str:
        if len(self._cluster) == 1:
            return ""
        return (
            "; unless more than half of the cluster's nodes run, use EmbeddedKafka.start(), which "
            "starts them together"
        )

    def _disconnect(self) -> None:
        self._ready = None

    def _trainee(self) -> "KafkaNode":
        # All brokers of this machine share the archive, whatever their settings are.
        settings = NodeSettings({}, None, {}, DEFAULT_HEAP, _TRAINING_TIMEOUT)
        node = KafkaNode(1, self.jar_set, settings)
        node.settle((free_ports(),))
        return node

    def _exercise(self) -> None:
        broker_admin.create_topic(broker_admin.admin_client(self.direct_servers), "training", 1, {})
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            "transactional.id": "training",
            "log_level": 0,
        }
        producer = Producer(settings)
        producer.init_transactions(broker_admin.TIMEOUT)
        producer.begin_transaction()
        producer.produce("training", b"value")
        producer.commit_transaction(broker_admin.TIMEOUT)

    def _data(self) -> Path:
        return self._directory() / "data"
