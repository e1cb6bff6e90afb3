"""A real Kafka broker for tests: one node, ready in about a second, gone when it is closed."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from tenacity import Retrying, retry_if_exception_message, stop_after_attempt

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

KAFKA_VARIABLE = "SPARK_EOS_KAFKA"
_NEWEST = "4.4.0"
_BIND_ATTEMPTS = 5
_STARTED: Final = "Kafka Server started"


def kafka_version() -> str:
    """Return the default version of brokers: ``$SPARK_EOS_KAFKA``, or 4.4.0."""
    return os.environ.get(KAFKA_VARIABLE) or _NEWEST


class EmbeddedKafka(EmbeddedServer):
    """A single-node Kafka on 127.0.0.1, with its own JVM and its data in a temporary directory.

    Use it as a context manager, or call `start` and `close`. JVM and data are removed when the
    Python process ends, even by SIGKILL. It is not thread-safe.

    The first start on a machine downloads the broker (43 MB) and prepares it for quick starts,
    which takes half a minute; later ones take about a second.

    Args:
        properties: Broker settings that override the defaults (see `broker_properties.BASE`).
        security: Secured listeners besides the plaintext one for clients, their users, and
            whether there is an authorizer.
        features: Levels of Kafka features to format the data with, such as
            ``{"transaction.version": 1}``; by default the newest.
        jar_set: The broker's jars, by the name of their lock file; by default those of
            `kafka_version`.
        heap: Maximum heap of the JVM, as in ``-Xmx``.
        port: Port for clients; by default a free one.
        advertised_port: Port to which clients are redirected once connected, such as that of a
            proxy in front of the broker; by default the port for clients.
        start_timeout: Seconds within which a start must succeed.

    Raises:
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
    """

    def __init__(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        security: BrokerSecurity | None = None,
        features: Mapping[str, int] | None = None,
        jar_set: str | None = None,
        heap: str = "256m",
        port: int | None = None,
        advertised_port: int | None = None,
        start_timeout: float = 60,
    ) -> None:
        super().__init__("broker", BrokerStartError, port=port, start_timeout=start_timeout)
        self._properties = dict(properties or {})
        self._security = security
        self._features = dict(features or {})
        self._jar_set = jar_set or f"kafka-{kafka_version()}"
        self._heap = heap
        self._advertised_port = advertised_port
        self._ports: Ports | None = None
        self._admin: AdminClient | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients, ``127.0.0.1:PORT``; restarts keep it."""
        return f"{HOST}:{self._addresses().client}"

    @property
    def direct_servers(self) -> str:
        """Address of the broker's internal listener: always plaintext, never behind a proxy."""
        return f"{HOST}:{self._addresses().internal}"

    def servers_of(self, listener: str) -> str:
        """Return the address of a secured listener; restarts keep it."""
        return f"{HOST}:{self._addresses().secured[listener]}"

    def _addresses(self) -> Ports:
        if self._ports is None:
            raise RuntimeError("The broker has no address before its first start()")
        return self._ports

    def _image(self) -> ServerImage:
        return broker_image(self._jar_set)

    def _run(self, image: ServerImage, options: Sequence[str]) -> None:
        if not self._data().exists():
            create_data(image, self._data(), self._features, self._properties)
        fixed = self._ports is not None or self._port is not None
        # Another process may take a port between our choice and Kafka's start.
        self._ports = Retrying(
            retry=retry_if_exception_message(match="(?s).*Address already in use"),
            stop=stop_after_attempt(1 if fixed else _BIND_ATTEMPTS),
            reraise=True,
        )(self._launched, image, options)

    def _launched(self, image: ServerImage, options: Sequence[str]) -> Ports:
        """Start it at its ports, or at free ones; return them."""
        secured = () if self._security is None else tuple(self._security.listeners)
        ports = self._ports or free_ports(self._port, self._advertised_port, secured)
        properties = self._directory() / "server.properties"
        settings = broker_properties(ports, self._data(), self._properties, self._security)
        write_properties(properties, settings)
        if self._security is not None:
            options = [*options, *self._security.jvm_options]
        run = command(image, "kafka.Kafka", str(properties), heap=self._heap, options=options)
        admin = broker_admin.admin_client(f"{HOST}:{ports.internal}")
        self._launch(run, lambda log: _STARTED in log and broker_admin.answers(admin))
        if self._security is not None:
            self._security.create_credentials(admin)
        self._admin = admin
        return ports

    def _trainee(self) -> "EmbeddedKafka":
        return EmbeddedKafka(jar_set=self._jar_set)

    def _exercise(self) -> None:
        self.create_topic("training")
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

    def _disconnect(self) -> None:
        self._admin = None

    def _data(self) -> Path:
        return self._directory() / "data"

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until it can be used.

        Raises:
            confluent_kafka.KafkaException: The broker refuses.
        """
        broker_admin.create_topic(self._administration(), name, partitions, config or {})

    def add_partitions(self, name: str, total: int) -> None:
        """Increase a topic's number of partitions to `total` and wait until they can be used.

        Raises:
            confluent_kafka.KafkaException: The broker refuses.
        """
        broker_admin.add_partitions(self._administration(), name, total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone.

        Raises:
            confluent_kafka.KafkaException: The broker refuses.
        """
        broker_admin.delete_topic(self._administration(), name)

    def _administration(self) -> AdminClient:
        if self._admin is None:
            raise RuntimeError("The broker is not running; call start()")
        return self._admin
