"""A real Kafka broker for tests: one node, ready in about a second, gone when it is closed."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from spark_eos.testing import broker_admin
from spark_eos.testing.broker_image import BrokerImage, BrokerStartError, broker_image
from spark_eos.testing.broker_properties import (
    Ports,
    broker_properties,
    free_ports,
    write_properties,
)
from spark_eos.testing.broker_security import BrokerSecurity
from spark_eos.testing.embedded_server import EmbeddedServer
from spark_eos.testing.loopback import HOST, is_free

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

    Example:
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
        super().__init__("broker", BrokerStartError, start_timeout=start_timeout)
        self._properties = dict(properties or {})
        self._security = security
        self._features = dict(features or {})
        self._jar_set = jar_set or f"kafka-{kafka_version()}"
        self._heap = heap
        self._port = port
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

    def prepare(self) -> None:
        """Download the broker's jars and archive its classes, as the first start would do."""
        self._prepared()

    def _start(self) -> None:
        self._start_image(self._prepared())

    def _prepared(self) -> BrokerImage:
        if self._ports is None and self._port is not None and not is_free(self._port):
            raise BrokerStartError(
                f"Port {self._port} of {HOST} is in use: choose another one, or none for a free one"
            )
        image = broker_image(self._jar_set)
        image.archive.train(lambda options: _train(self._jar_set, image, options))
        return image

    def _start_image(self, image: BrokerImage, options: Sequence[str] = ()) -> None:
        try:
            if not self._data().exists():
                image.create_data(self._data(), self._features, self._properties)
            if self._ports is not None:
                self._start_at(self._ports, image, options)
                return
            for attempt in range(1, _BIND_ATTEMPTS + 1):
                ports = free_ports(
                    self._port,
                    self._advertised_port,
                    () if self._security is None else tuple(self._security.listeners),
                )
                try:
                    self._start_at(ports, image, options)
                except BrokerStartError as error:
                    # Another process took a port between our choice and Kafka's start.
                    taken = "Address already in use" in str(error)
                    if not taken or self._port is not None or attempt == _BIND_ATTEMPTS:
                        raise
                else:
                    self._ports = ports
                    return
        except BaseException:
            if self._ports is None:  # it has never run, so its data is worthless
                self.close()
            raise

    def _start_at(self, ports: Ports, image: BrokerImage, options: Sequence[str]) -> None:
        properties = self._directory() / "server.properties"
        write_properties(
            properties, broker_properties(ports, self._data(), self._properties, self._security)
        )
        if self._security is not None:
            options = [*options, *self._security.jvm_options]
        command = image.kafka(properties, heap=self._heap, options=options)
        admin = broker_admin.admin_client(f"{HOST}:{ports.internal}")
        self._launch(command, lambda log: _STARTED in log and broker_admin.answers(admin))
        if self._security is not None:
            self._security.create_credentials(admin)
        self._admin = admin

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


def _train(jar_set: str, image: BrokerImage, options: Sequence[str]) -> None:
    """Run a broker once through what tests do, so that its JVM can archive the classes it loads."""
    broker = EmbeddedKafka(jar_set=jar_set)
    try:
        broker._start_image(image, options)  # noqa: SLF001
        broker.create_topic("training")
        settings: dict[str, Any] = {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": "training",
            "log_level": 0,
        }
        producer = Producer(settings)
        producer.init_transactions(broker_admin.TIMEOUT)
        producer.begin_transaction()
        producer.produce("training", b"value")
        producer.commit_transaction(broker_admin.TIMEOUT)
        broker.stop(grace=60)  # the JVM writes the archive when it exits, which takes seconds
    except KafkaException as error:
        raise BrokerStartError(f"{error}\n{broker.log()}") from error
    finally:
        broker.close()
