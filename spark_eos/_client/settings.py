"""Client settings, named as in librdkafka, for librdkafka, kafka-python and Spark."""

# All client settings pass through this module; `spark_eos._client.security` handles the security
# settings.

import functools
import os
import re
import socket
import uuid
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from spark_eos._client.kafka_python import bootstrap_hosts
from spark_eos._client.oauth import called
from spark_eos._client.security import is_security_setting, security
from spark_eos.acls import Principal
from spark_eos.errors import ConfigurationError

_COMMITTED: Final = "offsets are committed in the transactions that hold their rows"
_MEMBERSHIP: Final = "spark-eos itself is the group's member"
# Consumer settings would have no effect: Spark's source joins no group, and starts at the offsets
# that it is given.
_OWNED: Final = {
    "transactional.id": "set transactions.id_prefix instead",
    "transaction.timeout.ms": "set transactions.timeout_ms instead",
    "group.id": "set group_id instead",
    "enable.idempotence": "a transactional producer is always idempotent",
    "metadata.broker.list": "set bootstrap.servers instead",
    "acks": "a transactional producer needs acks=all",
    "request.required.acks": "a transactional producer needs acks=all",
    "delivery.report.only.error": "spark-eos counts delivery errors itself",
    "max.block.ms": "set limits.max_block_ms instead",
    "metadata.max.idle.ms": "set limits.metadata_max_idle_ms instead",
    "message.timeout.ms": "records expire with their transaction; set transactions.timeout_ms",
    "delivery.timeout.ms": "records expire with their transaction; set transactions.timeout_ms",
    "error_cb": "callbacks can't be sent to Spark's workers",
    "stats_cb": "callbacks can't be sent to Spark's workers",
    "on_delivery": "callbacks can't be sent to Spark's workers",
    "auto.offset.reset": "set starting_offsets of sink.read instead: 'earliest' or 'latest'",
    **dict.fromkeys(
        (
            "auto.commit.enable",
            "auto.commit.interval.ms",
            "enable.auto.commit",
            "enable.auto.offset.store",
            "offset.store.method",
        ),
        _COMMITTED,
    ),
    **dict.fromkeys(
        (
            "group.instance.id",
            "group.protocol",
            "group.protocol.type",
            "group.remote.assignor",
            "heartbeat.interval.ms",
            "max.poll.interval.ms",
            "partition.assignment.strategy",
            "session.timeout.ms",
        ),
        _MEMBERSHIP,
    ),
}
# Settings that always have these values, which users may therefore set explicitly.
_USED: Final = {
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
    "enable.idempotence": ("true",),
    "auto.commit.enable": ("false",),
    "enable.auto.commit": ("false",),
    "enable.auto.offset.store": ("false",),
    "group.protocol": ("consumer",),
}
# Settings of Java's clients, with librdkafka's names for them.
_JAVAS: Final = {
    "buffer.memory": "'queue.buffering.max.kbytes', in units of 1,024 bytes",
    "compression.gzip.level": "'compression.level'",
    "compression.lz4.level": "'compression.level'",
    "compression.zstd.level": "'compression.level'",
    "fetch.max.wait.ms": "'fetch.wait.max.ms'",
    "max.request.size": "'message.max.bytes'",
    "partitioner.class": "'partitioner'",
    "receive.buffer.bytes": "'socket.receive.buffer.bytes'",
    "send.buffer.bytes": "'socket.send.buffer.bytes'",
    "socket.connection.setup.timeout.max.ms": "'socket.connection.setup.timeout.ms'",
}
_SPARKS_PREFIX: Final = "kafka."
_SPARK_ONLY: Final = ("isolation.level",)
# A consumer of librdkafka refuses a `fetch.max.bytes` that is below `message.max.bytes`; without
# it, it chooses a value that fits. A producer only checks its range.
_NOT_FOR_CONSUMERS: Final = ("fetch.max.bytes", *_SPARK_ONLY)
# Settings that Spark's source accepts: librdkafka's name, then Java's. The values are the same,
# except for those in `_OFF_IS_0`.
_OF_CONSUMERS: Final = {
    **{
        name: name
        for name in (
            "check.crcs",
            "client.dns.lookup",
            "client.id",
            "client.rack",
            "connections.max.idle.ms",
            "fetch.max.bytes",
            "fetch.min.bytes",
            "max.partition.fetch.bytes",
            "metadata.max.age.ms",
            "metadata.recovery.rebootstrap.trigger.ms",
            "metadata.recovery.strategy",
            "reconnect.backoff.max.ms",
            "reconnect.backoff.ms",
            "retry.backoff.max.ms",
            "retry.backoff.ms",
            "socket.connection.setup.timeout.ms",
        )
    },
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
}
# "Never" and "the system's default" are 0 in librdkafka, and -1 in Java.
_OFF_IS_0: Final = (
    "connections.max.idle.ms",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
)
JAVAS_CONSUMER: Final = {javas: ours for ours, javas in _OF_CONSUMERS.items() if ours != javas}
"""Settings of Java's consumers that librdkafka names differently, with librdkafka's names."""
_TEXTS: Final = {
    "check.crcs",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "metadata.recovery.strategy",
}
# Numbers that not only librdkafka reads, which takes "10k" as 10, and "010" as 8.
_NUMBERS: Final = frozenset(
    {
        "batch.size",
        "message.max.bytes",
        "queue.buffering.max.kbytes",
        "socket.timeout.ms",
        *(_OF_CONSUMERS.keys() - _TEXTS),
    }
)
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")

# After each poll, Spark asks for the partition's first and last offsets. At the end of the topic,
# these requests wait behind the next fetch on the same connection. With Kafka's defaults, this
# costs a second in each task that reads to the end, and two requests per 500 records elsewhere.
QUICK_SOURCE: Final = ("kafka.fetch.max.wait.ms", "kafka.max.poll.records")
# Spark keeps the records of each partition's last poll for minutes. Each record takes about 230
# bytes in addition to its key and value. With 500 or more partitions, each poll gets Kafka's
# default of 500 records.
_KEPT_RECORDS: Final = 250_000
_FEWEST_POLLED, _MOST_POLLED = 500, 5_000
# librdkafka's largest `socket.timeout.ms`.
_LONGEST_REQUEST_MS: Final = 300_000

_PRODUCER_DEFAULTS: Final = {
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "partitioner": "murmur2_random",
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 65_536,
}


def default_client_id() -> str:
    """Return a client id that identifies the process: ``spark-eos-<host>-<pid>``."""
    return f"spark-eos-{socket.gethostname()}-{os.getpid()}"


class ClientSettings:
    """Kafka client settings as the user wrote them; ``repr`` hides secrets."""

    # Certificate and key files are read only in `__init__`, on the driver.

    def __init__(self, settings: Mapping[str, Any]) -> None:
        named = _without_prefix(_mapping(settings))
        if isinstance(servers := named.get("bootstrap.servers"), list | tuple | set):
            named["bootstrap.servers"] = ",".join(map(str, servers))
        for name, value in [*named.items()]:
            if str(value).lower() in _USED.get(name, ()):
                del named[name]
                continue
            # To librdkafka, `topic.acks` is another name of `acks`.
            if (reason := _OWNED.get(name.removeprefix("topic."))) is not None:
                raise ConfigurationError(f"kafka[{name!r}] can't be set: {reason}")
            if name in _JAVAS:
                raise ConfigurationError(
                    f"kafka[{name!r}] is a setting of Java's clients; librdkafka calls it "
                    f"{_JAVAS[name]}"
                )
            if name in _NUMBERS:
                named[name] = _number(name, value)
                continue
            wanted = name == "oauth_cb" and callable(value)
            if not wanted and (name == "oauth_cb" or not isinstance(value, str | int | float)):
                kind = "a function" if name == "oauth_cb" else "a string, a number or a boolean"
                raise ConfigurationError(
                    f"kafka[{name!r}] must be {kind}, not {type(value).__name__}"
                )
        named["bootstrap.servers"] = _servers(str(named.get("bootstrap.servers", "")))
        self.security = security(named)
        self._settings = {
            name: value for name, value in named.items() if not is_security_setting(name)
        }
        self.security.for_kafka_python()  # makes OpenSSL check the certificates and keys
        # Each task unpickles a copy, in which a token function is usually another object.
        self._original = uuid.uuid4()

    @classmethod
    def of_source(cls, settings: Mapping[str, Any] | None) -> "ClientSettings | None":
        """Return the settings of the source's cluster; None if that is the target's cluster."""
        try:
            return None if settings is None else cls(settings).checked_by_librdkafka()
        except ConfigurationError as error:
            raise ConfigurationError(f"source_kafka: {error.text}") from error

    def __repr__(self) -> str:
        return f"ClientSettings({self._settings}, security={str(self.security)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientSettings) and (
            self._original == other._original
            or (self._settings == other._settings and self.security == other.security)
        )

    def __hash__(self) -> int:
        return hash(tuple(sorted((name, str(value)) for name, value in self._settings.items())))

    @property
    def bootstrap_servers(self) -> str:
        return str(self._settings["bootstrap.servers"])

    @property
    def principal(self) -> Principal:
        """The principal that needs ACLs, as far as the settings show, and its cluster."""
        config = None if self.security.protocol == "PLAINTEXT" else "FILE"
        return Principal(self.security.principal, self.bootstrap_servers, config)

    def for_producer(self, transactional_id: str, transaction_timeout_ms: int) -> dict[str, Any]:
        return {
            **_PRODUCER_DEFAULTS,
            "client.id": default_client_id(),
            **{k: v for k, v in self._settings.items() if k not in _SPARK_ONLY},
            **self.security.for_librdkafka(),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": transaction_timeout_ms,
            "delivery.report.only.error": True,
        }

    def checked_by_librdkafka(
        self, transaction_timeout_ms: int = _LONGEST_REQUEST_MS
    ) -> "ClientSettings":
        """Let librdkafka check the settings that the workers will use, and return ``self``."""
        # A request may not take longer than a transaction; clients that only read have none.
        settings = self.for_producer("spark-eos", transaction_timeout_ms)
        # confluent-kafka would wait for the first token.
        settings.pop("oauth_cb", None)
        _try_producer(settings, "kafka settings")
        return self

    def for_consumer(self) -> dict[str, Any]:
        own = self.security.for_librdkafka()
        if "oauth_cb" in own:
            # A client of confluent-kafka that closes waits for the function, which may hang.
            own["oauth_cb"] = functools.partial(called, own["oauth_cb"])
        return {
            # librdkafka would warn about each producer setting; errors are raised as exceptions.
            "log_level": 0,
            "client.id": default_client_id(),
            **{k: v for k, v in self._settings.items() if k not in _NOT_FOR_CONSUMERS},
            **own,
        }

    def for_kafka_python(self) -> dict[str, Any]:
        """Return settings for kafka-python, which `spark_eos._kafka.connection` uses."""
        return {
            "bootstrap_servers": self.bootstrap_servers.split(","),
            "client_id": str(self._settings.get("client.id", default_client_id())),
            "client_software_name": "spark-eos",
            "receive_message_max_bytes": 100_000_000,
            "max_in_flight_requests_per_connection": 64,
            "reconnect_backoff_max_ms": 1_000,
            # For kafka-python's own requests; ours have a time limit each.
            "request_timeout_ms": 10_000,
            "slow_task_threshold_secs": 0,
            **self.security.for_kafka_python(),
        }

    def for_spark_source(self, partitions: int = 1) -> dict[str, str]:
        """Return options for Spark's Kafka source; many partitions mean smaller polls."""
        polled = min(_MOST_POLLED, max(_FEWEST_POLLED, _KEPT_RECORDS // max(1, partitions)))
        options = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "kafka.isolation.level": str(self._settings.get("isolation.level", "read_committed")),
            **dict(zip(QUICK_SOURCE, ("1", str(polled)), strict=True)),
            **{_SPARKS_PREFIX + k: text for k, text in self.security.for_java().items()},
        }
        if "socket.timeout.ms" in self._settings:
            # Java's clients have two timeouts instead. Spark's driver keeps asking the same node
            # until a call of several requests times out, and only then tries another node.
            wait = int(self._settings["socket.timeout.ms"])
            options["kafka.request.timeout.ms"] = str(wait)
            options["kafka.default.api.timeout.ms"] = str(2 * wait)
        for name, javas in _OF_CONSUMERS.items():
            if name in self._settings:
                text = str(self._settings[name])
                is_off = name in _OFF_IS_0 and text == "0"
                options[_SPARKS_PREFIX + javas] = "-1" if is_off else text
        return options


def _number(name: str, value: object) -> int:
    """Return a number that all clients read alike."""
    whole = isinstance(value, float) and value.is_integer()
    text = str(int(value) if whole else value).strip()  # type: ignore[call-overload]
    if _NUMBER.fullmatch(text) is None:
        raise ConfigurationError(f"kafka[{name!r}] must be a whole number, not {text!r}")
    return int(text)


def _servers(given: str) -> str:
    """Return ``bootstrap.servers`` without empty entries, if all clients can use the rest."""
    servers = [server.strip() for server in given.split(",") if server.strip()]
    if not servers:
        raise ConfigurationError("kafka needs 'bootstrap.servers', such as 'localhost:9092'")
    for server in servers:
        try:
            ((host, port),) = bootstrap_hosts(server)
        except ValueError:
            host, port = "", 0
        # Java's clients need the port, and brackets around IPv6 addresses.
        bare = ":" in host and "[" not in server
        if not host or bare or not 0 < port < 65_536 or not server.endswith(f":{port}"):
            raise ConfigurationError(
                f"kafka['bootstrap.servers'] contains {server!r}, which must be HOST:PORT, such as "
                "localhost:9092 or [::1]:9092"
            )
    return ",".join(servers)


def _mapping(settings: object) -> Mapping[str, Any]:
    if isinstance(settings, Mapping):
        return settings
    raise ConfigurationError(
        "kafka must be a dict of client settings, such as "
        f"{{'bootstrap.servers': 'localhost:9092'}}, not of type {type(settings).__name__}"
    )


def _without_prefix(settings: Mapping[str, Any]) -> dict[str, Any]:
    named = {name.removeprefix(_SPARKS_PREFIX): value for name, value in settings.items()}
    if len(named) < len(settings):
        twice = sorted(name for name in named if _SPARKS_PREFIX + name in settings)
        names = ", ".join(name for name in twice if name in settings)
        raise ConfigurationError(f"kafka has {names} twice: with and without the prefix 'kafka.'")
    return named


def _try_producer(settings: dict[str, Any], what: str) -> None:
    try:
        Producer({**settings, "log_level": 0}).close()
    except KafkaException as error:
        if len(settings) > 1:
            # librdkafka reports a setting by its oldest name, so find out which setting it means.
            for name, value in settings.items():
                # A security setting may fail here just because the others are missing.
                if not is_security_setting(name):
                    _try_producer({name: value}, f"kafka[{name!r}]")
        why = error.args[0].str().replace("`transaction.timeout.ms`", "transactions.timeout_ms")
        raise ConfigurationError(f"{what}: {why}") from error
