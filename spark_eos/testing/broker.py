"""A real Kafka broker for tests: one node, ready in about a second, gone when it is closed."""

import logging
import os
import signal
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewPartitions,
    NewTopic,
)

from spark_eos.testing.broker_admin import TIMEOUT, admin_client, answers, await_partitions
from spark_eos.testing.broker_image import BrokerImage, BrokerStartError, broker_image
from spark_eos.testing.broker_process import BrokerProcess
from spark_eos.testing.broker_properties import (
    HOST,
    Ports,
    broker_properties,
    free_ports,
    write_properties,
)
from spark_eos.testing.broker_remains import Remains
from spark_eos.testing.broker_security import BrokerSecurity

_Broker = TypeVar("_Broker", bound="EmbeddedKafka")
_logger = logging.getLogger(__name__)
KAFKA_VARIABLE = "SPARK_EOS_KAFKA"
_NEWEST = "4.4.0"
_STARTED = "Kafka Server started"
_BIND_ATTEMPTS = 5
_LOG_TAIL_LINES = 40


def kafka_version() -> str:
    """Return the version of brokers for which none is chosen: ``$SPARK_EOS_KAFKA``, or 4.4.0."""
    return os.environ.get(KAFKA_VARIABLE) or _NEWEST


class EmbeddedKafka:
    """A single-node Kafka on 127.0.0.1, in a JVM of its own, its data in a temporary directory.

    Use it as a context manager, or call `start` and `close`. What is left of it when the
    Python process ends, even by SIGKILL, is removed: the JVM and the data. It is not thread-safe.

    The first start on a machine downloads the broker (43 MB) and prepares it for quick starts,
    which takes half a minute; later ones take about a second.

    Args:
        properties: Broker settings on top of the default ones (see `broker_properties.BASE`).
        security: Secured listeners beside the plain one for clients, their users, and whether
            there is an authorizer.
        features: Levels of Kafka features to format the data with, such as
            ``{"transaction.version": 1}``; by default the newest.
        jar_set: Which broker, by the name of its jars' lock file; by default that of
            `kafka_version`.
        heap: Maximum heap of the JVM, as in ``-Xmx``.
        port: Port for clients; by default a free one.
        advertised_port: Port that clients are sent to once they have connected, such as that of
            a proxy in front of the broker; by default the port for clients.
        start_timeout: Seconds within which a start must succeed.

    Raises:
        BrokerStartError: From `start`: Kafka does not start; the message ends with its log.
        spark_eos.jars.jar_sets.JarError: From `start`: the broker's jars are not those locked.
        spark_eos.jars.ivy.DownloadError: From `start`: the broker's jars could not be downloaded.
        spark_eos.jars.java.JavaError: From `start`: there is no Java 17 or newer.
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
        self._properties = dict(properties or {})
        self._security = security
        self._features = dict(features or {})
        self._jar_set = jar_set or f"kafka-{kafka_version()}"
        self._heap = heap
        self._port = port
        self._advertised_port = advertised_port
        self._start_timeout = start_timeout
        self._ports: Ports | None = None
        self._admin: AdminClient | None = None
        self._remains = Remains()
        # Also runs when the interpreter exits.
        self._finalizer = weakref.finalize(self, self._remains.discard)

    def __enter__(self: _Broker) -> _Broker:
        """Start the broker."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the broker and remove its data."""
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients, ``127.0.0.1:PORT``; the same over restarts."""
        return f"{HOST}:{self._addresses().client}"

    @property
    def direct_servers(self) -> str:
        """Address of the broker's own listener: always plaintext, and never behind a proxy."""
        return f"{HOST}:{self._addresses().internal}"

    def servers_of(self, listener: str) -> str:
        """Address of a secured listener, by its name; the same over restarts."""
        return f"{HOST}:{self._addresses().secured[listener]}"

    def _addresses(self) -> Ports:
        if self._ports is None:
            raise RuntimeError("The broker has no address before its first start()")
        return self._ports

    @property
    def pid(self) -> int:
        """Process id of the broker's JVM."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether the JVM lives (paused counts as living)."""
        process = self._remains.process
        return process is not None and process.exit_code() is None

    def start(self) -> None:
        """Start the broker, for the first time or again on the same data and port; wait for it."""
        if self.is_running:
            raise RuntimeError("The broker is running already")
        image = broker_image(self._jar_set)
        image.archive.train(lambda options: _train(self._jar_set, image, options))
        self._start(image)

    def _start(self, image: BrokerImage, options: Sequence[str] = ()) -> None:
        try:
            if self._remains.directory is None:
                self._remains.directory = Path(tempfile.mkdtemp(prefix="spark-eos-kafka-"))
                data = self._remains.directory / "data"
                image.create_data(data, self._features, self._properties)
            if self._ports is not None:
                self._launch(image, self._ports, options)
                return
            for attempt in range(1, _BIND_ATTEMPTS + 1):
                ports = free_ports(
                    self._port,
                    self._advertised_port,
                    () if self._security is None else tuple(self._security.listeners),
                )
                try:
                    self._launch(image, ports, options)
                except BrokerStartError as error:
                    # Somebody took a port between its choice and Kafka's start.
                    taken = "Address already in use" in str(error)
                    if not taken or self._port is not None or attempt == _BIND_ATTEMPTS:
                        raise
                else:
                    self._ports = ports
                    return
        except BaseException:
            if self._ports is None:  # it never ran: nothing in its data is of use
                self.close()
            raise

    def _launch(self, image: BrokerImage, ports: Ports, options: Sequence[str]) -> None:
        directory = self._directory()
        properties = directory / "server.properties"
        write_properties(
            properties,
            broker_properties(ports, directory / "data", self._properties, self._security),
        )
        if self._security is not None:
            options = [*options, *self._security.jvm_options]
        deadline = time.monotonic() + self._start_timeout
        logged_before = len(self.log())
        process = BrokerProcess(
            image.kafka(properties, heap=self._heap, options=options),
            directory=directory,
            log=directory / "broker.log",
        )
        self._remains.process = process
        admin = admin_client(f"{HOST}:{ports.internal}")
        while not (_STARTED in self.log()[logged_before:] and answers(admin)):
            code = process.exit_code()
            if code is None and time.monotonic() < deadline:
                time.sleep(0.02)
                continue
            self.kill()
            reason = (
                f"did not answer within {self._start_timeout:g} s (start_timeout)"
                if code is None
                else f"ended with exit code {code}"
            )
            raise BrokerStartError(f"Kafka {reason}. The end of its log:\n{self._log_tail()}")
        if self._security is not None:
            self._security.create_credentials(admin)
        self._admin = admin

    def stop(self, grace: float = 10) -> None:
        """Stop the broker with SIGTERM, after `grace` seconds with SIGKILL; the data stays."""
        self._admin = None
        if self._remains.process is not None:
            self._remains.process.stop(grace)

    def kill(self) -> None:
        """End the broker with SIGKILL; the data stays."""
        self._admin = None
        if self._remains.process is not None:
            self._remains.process.kill()

    def pause(self) -> None:
        """Freeze the broker with SIGSTOP: its connections stay open, but nothing answers."""
        self._running().pause()

    def resume(self) -> None:
        """Let a paused broker go on."""
        self._running().signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop the broker and remove its data. Its log can still be read, nothing else."""
        self._admin = None
        self._remains.discard()

    def log(self) -> str:
        """Return what the broker has logged since its first start: warnings and errors."""
        return self._remains.log()

    def _log_tail(self) -> str:
        return "\n".join(self.log().splitlines()[-_LOG_TAIL_LINES:])

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until it can be used.

        Raises:
            confluent_kafka.KafkaException: The broker refuses.
        """
        topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
        self._administration().create_topics([topic])[name].result(TIMEOUT)
        await_partitions(self._administration(), name, partitions)

    def add_partitions(self, name: str, total: int) -> None:
        """Raise a topic's number of partitions to `total` and wait until they can be used.

        Raises:
            confluent_kafka.KafkaException: The broker refuses.
        """
        more = NewPartitions(name, total)
        self._administration().create_partitions([more])[name].result(TIMEOUT)
        await_partitions(self._administration(), name, total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone.

        Raises:
            confluent_kafka.KafkaException: The broker refuses.
        """
        self._administration().delete_topics([name])[name].result(TIMEOUT)
        await_partitions(self._administration(), name, 0)

    def _administration(self) -> AdminClient:
        if self._admin is None:
            raise RuntimeError("The broker is not running; call start()")
        return self._admin

    def _running(self) -> BrokerProcess:
        if self._remains.process is None or not self.is_running:
            raise RuntimeError("The broker is not running; call start()")
        return self._remains.process

    def _directory(self) -> Path:
        if self._remains.directory is None:
            raise RuntimeError("The broker was closed")
        return self._remains.directory


def _train(jar_set: str, image: BrokerImage, options: Sequence[str]) -> None:
    """Run a broker once through what tests do, for the sake of its JVM."""
    _logger.info("Preparing %s for quick starts", jar_set)
    broker = EmbeddedKafka(jar_set=jar_set)
    try:
        broker._start(image, options)  # noqa: SLF001
        broker.create_topic("training")
        settings: dict[str, Any] = {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": "training",
            "log_level": 0,
        }
        producer = Producer(settings)
        producer.init_transactions(TIMEOUT)
        producer.begin_transaction()
        producer.produce("training", b"value")
        producer.commit_transaction(TIMEOUT)
        broker.stop(grace=60)  # the archive is written on exit, which takes seconds
    except KafkaException as error:
        raise BrokerStartError(f"{error}\n{broker.log()}") from error
    finally:
        broker.close()
