"""Client settings: written once, in librdkafka's names, for librdkafka, the wire and Spark.

Names: librdkafka's CONFIGURATION.md. Every client setting of spark-eos passes through here; those
of security are in `spark_eos.client.security`.
"""

import os
import socket
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from spark_eos.acls import Grantee
from spark_eos.client.security import is_security_setting, security
from spark_eos.errors import ConfigurationError

_OWNED: Final = {
    "transactional.id": "set transactional_id_prefix instead",
    "transaction.timeout.ms": "set transaction_timeout_ms instead",
    "group.id": "set group_id instead",
    "enable.idempotence": "a transactional producer is always idempotent",
    "acks": "a transactional producer needs acks=all",
    "request.required.acks": "a transactional producer needs acks=all",
    "delivery.report.only.error": "spark-eos counts delivery errors itself",
    "message.timeout.ms": "records live as long as their transaction; set transaction_timeout_ms",
    "delivery.timeout.ms": "records live as long as their transaction; set transaction_timeout_ms",
    "error_cb": "callbacks can't travel to Spark's workers",
    "stats_cb": "callbacks can't travel to Spark's workers",
    "on_delivery": "callbacks can't travel to Spark's workers",
}
_SPARKS_PREFIX: Final = "kafka."
_CONSUMER_ONLY: Final = ("isolation.level",)

# Spark asks for a partition's first and last offset after each poll, over the connection on which
# the next fetch waits at the end of the topic. With Kafka's defaults that is a second for each task
# that reads up to the end, and otherwise two requests for every 500 records. Spark keeps what a
# poll has brought, of each partition.
QUICK_SOURCE: Final = {"kafka.fetch.max.wait.ms": "1", "kafka.max.poll.records": "5000"}

_PRODUCER_DEFAULTS: Final = {
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "partitioner": "murmur2_random",
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 65_536,
}


def default_client_id() -> str:
    """A client id by which an operator finds the process: ``spark-eos-<host>-<pid>``."""
    return f"spark-eos-{socket.gethostname()}-{os.getpid()}"


class ClientSettings:
    """Kafka client settings as their user wrote them; what may be secret stays hidden.

    Files of certificates and keys are read here, on the driver, and nowhere else.

    Args:
        settings: Librdkafka's names, or Spark's with ``kafka.`` before them, to strings, numbers
            or booleans, and ``oauth_cb`` to a function; ``bootstrap.servers`` is required.

    Attributes:
        security: How the clients reach the listener.

    Raises:
        ConfigurationError: A setting is missing, is spark-eos' own, or can't be used.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        named = _without_prefix(settings)
        for name, value in named.items():
            if name in _OWNED:
                raise ConfigurationError(f"kafka[{name!r}] can't be set: {_OWNED[name]}")
            wanted = name == "oauth_cb" and callable(value)
            if not wanted and (name == "oauth_cb" or not isinstance(value, str | int | float)):
                kind = "a function" if name == "oauth_cb" else "a string, a number or a boolean"
                raise ConfigurationError(
                    f"kafka[{name!r}] must be {kind}, not {type(value).__name__}"
                )
        if not str(named.get("bootstrap.servers", "")).strip():
            raise ConfigurationError("kafka needs 'bootstrap.servers', such as 'localhost:9092'")
        self.security = security(named)
        self._given = named
        self._settings = {
            name: value for name, value in named.items() if not is_security_setting(name)
        }
        self.security.for_wire()  # OpenSSL reads certificates and keys

    def __repr__(self) -> str:
        return f"ClientSettings({self._settings}, security={str(self.security)!r})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ClientSettings)
            and self._settings == other._settings
            and self.security == other.security
        )

    def __hash__(self) -> int:
        return hash(tuple(sorted((name, str(value)) for name, value in self._settings.items())))

    def plain(self) -> dict[str, str | int | float]:
        """The settings as they were given, secrets among them: for another process of this user.

        Raises:
            ConfigurationError: There is a function, which can't travel as a plain value.
        """
        if "oauth_cb" in self._given:
            raise ConfigurationError("kafka['oauth_cb'] is a function, and can't be had here")
        return dict(self._given)

    @property
    def bootstrap_servers(self) -> str:
        """The servers to start from, joined by commas."""
        return str(self._settings["bootstrap.servers"])

    @property
    def grantee(self) -> Grantee:
        """Whom ACLs for these clients are given to, as far as the settings tell, and where."""
        return Grantee(self.security.principal, self.bootstrap_servers)

    def for_producer(self, transactional_id: str, transaction_timeout_ms: int) -> dict[str, Any]:
        """Settings of librdkafka for one transactional producer."""
        return {
            **_PRODUCER_DEFAULTS,
            "client.id": default_client_id(),
            **{k: v for k, v in self._settings.items() if k not in _CONSUMER_ONLY},
            **self.security.for_librdkafka(),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": transaction_timeout_ms,
            "delivery.report.only.error": True,
        }

    def checked_by_librdkafka(self) -> "ClientSettings":
        """These settings, once librdkafka has accepted what it will be given on the workers.

        Raises:
            ConfigurationError: In librdkafka's own words, with the setting's name.
        """
        _try_producer(self.for_producer("spark-eos", 60_000), "kafka settings")
        return self

    def for_consumer(self) -> dict[str, Any]:
        """Settings of librdkafka for a consumer or an administrator.

        librdkafka warns of each setting that only producers have, and prints lost connections:
        it is told to be quiet, since errors reach the user as exceptions.
        """
        return {
            "log_level": 0,
            "client.id": default_client_id(),
            **{k: v for k, v in self._settings.items() if k not in _CONSUMER_ONLY},
            **self.security.for_librdkafka(),
        }

    def for_wire(self) -> dict[str, Any]:
        """kafka-python's settings for the connections of `spark_eos.kafka.connection`."""
        return {
            "bootstrap_servers": [s.strip() for s in self.bootstrap_servers.split(",")],
            "client_id": str(self._settings.get("client.id", default_client_id())),
            "client_software_name": "spark-eos",
            "receive_message_max_bytes": 100_000_000,
            "max_in_flight_requests_per_connection": 64,
            "reconnect_backoff_max_ms": 1_000,
            "slow_task_threshold_secs": 0,
            **self.security.for_wire(),
        }

    def for_spark_source(self) -> dict[str, str]:
        """Options of Spark's Kafka source. It reads committed records only, unless told else."""
        options = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "kafka.isolation.level": str(self._settings.get("isolation.level", "read_committed")),
            **QUICK_SOURCE,
            **{_SPARKS_PREFIX + k: text for k, text in self.security.for_java().items()},
        }
        if "client.id" in self._settings:
            options["kafka.client.id"] = str(self._settings["client.id"])
        return options


def _without_prefix(settings: Mapping[str, Any]) -> dict[str, Any]:
    named = {name.removeprefix(_SPARKS_PREFIX): value for name, value in settings.items()}
    if len(named) < len(settings):
        twice = sorted(name for name in named if _SPARKS_PREFIX + name in settings)
        names = ", ".join(name for name in twice if name in settings)
        raise ConfigurationError(f"kafka has {names} twice: with the prefix 'kafka.' and without")
    return named


def _try_producer(settings: dict[str, Any], what: str) -> None:
    try:
        Producer({**settings, "log_level": 0}).close()
    except KafkaException as error:
        if len(settings) > 1:
            # librdkafka speaks of a setting by its oldest name, so find out which one it means.
            for name, value in settings.items():
                # By itself one of security may fail for lack of the others.
                if not is_security_setting(name):
                    _try_producer({name: value}, f"kafka[{name!r}]")
        raise ConfigurationError(f"{what}: {error.args[0].str()}") from error
