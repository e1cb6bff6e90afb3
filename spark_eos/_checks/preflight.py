"""Checks made before anything is written; each error says what to change."""

# Each check is made once per start. Exactly-once does not depend on these checks: brokers check
# every request again. The run itself looks up everything that exactly-once depends on: topic ids,
# group members, open transactions and offsets.

import logging
from collections.abc import Callable, Collection

from spark_eos._checks.start import Start
from spark_eos._client.error_codes import (
    DENIED,
    TRANSACTION_VERSION,
    Code,
    code_names,
    transactions_upgrade,
)
from spark_eos._kafka import cluster
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.heartbeats import check_membership
from spark_eos._kafka.protocol import ConsumerGroupHeartbeatRequest, TxnOffsetCommitRequest
from spark_eos._kafka.transactional_ids import driver_id
from spark_eos._kafka.transactions import BY_ID, BY_NAME, fence_producer
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.acls import Acl, Principal, ResourceType, describe_configs, query_acls
from spark_eos.errors import (
    AuthorizationError,
    ConfigurationError,
    KafkaResponseError,
    TopicNotFoundError,
    UnsupportedBrokerError,
    warn,
)

logger = logging.getLogger(__name__)


def offset_commit_version(features: cluster.BrokerFeatures, where: Principal) -> int:
    """Return the newest usable TxnOffsetCommit version: 6 by topic id (KIP-1319), or 5 by name."""
    greatest = features.versions.get(TxnOffsetCommitRequest.API_KEY, -1)
    heartbeats = ConsumerGroupHeartbeatRequest.API_KEY in features.versions
    if not heartbeats or greatest < BY_NAME:
        raise UnsupportedBrokerError(
            f"the brokers at {where.bootstrap_servers} support TxnOffsetCommit up to version "
            f"{greatest} and {'' if heartbeats else 'no '}ConsumerGroupHeartbeat; spark-eos needs "
            "TxnOffsetCommit 5 and the consumer group protocol: Kafka 4.0 or newer"
        )
    level = features.features.get("transaction.version", 0)
    if level < TRANSACTION_VERSION:
        raise UnsupportedBrokerError(
            f"the cluster at {where.bootstrap_servers} has transaction.version={level}, but "
            f"spark-eos needs {TRANSACTION_VERSION} (KIP-890). Upgrade the feature: "
            f"{transactions_upgrade(where)}"
        )
    return min(greatest, BY_ID)


def check_brokers(start: Start, settings: WriterSettings, deadline: Deadline) -> int:
    """Return the newest usable version of TxnOffsetCommit; ask a broker only once per start."""

    def ask() -> int:
        features = cluster.broker_features(start.target, deadline)
        return offset_commit_version(features, settings.client.principal)

    return start.cached("version", ask)


def feeds_itself(option: str, topic: str) -> ConfigurationError:
    """Return the error for an option that names one of the query's sources."""
    return ConfigurationError(
        f"{option}={topic!r} is a topic that the query reads or keeps its progress in, so the "
        "query would feed itself: choose another topic"
    )


def check_target_topic(
    start: Start,
    topic: str | None,
    settings: WriterSettings,
    deadline: Deadline,
    option: str = "topic",
) -> None:
    """Check the default target topic, or the dead-letter topic."""
    if topic is None:
        return
    if topic in settings.source_topics:
        raise feeds_itself(option, topic)

    def look() -> None:
        if topic not in cluster.topics(start.target, [topic], deadline):
            what = "target topic" if option == "topic" else "dead-letter topic"
            raise TopicNotFoundError(f"{what} {topic!r} does not exist; create it first")

    start.cached(("topic", topic), look)


def check_transactions(
    connections: Connections, settings: WriterSettings, deadline: Deadline
) -> None:
    """Try the transaction settings with a transactional id that only the driver uses."""
    transaction_timeout_ms = settings.transactions.timeout_ms
    name = driver_id(settings.transactions.id_prefix, settings.group_id)
    try:
        fence_producer(connections, name, transaction_timeout_ms, deadline)
    except KafkaResponseError as error:
        if error.code != Code.INVALID_TRANSACTION_TIMEOUT:
            raise
        raise ConfigurationError(
            f"transactions.timeout_ms={transaction_timeout_ms} is above the brokers' "
            "transaction.max.timeout.ms; lower transactions.timeout_ms, or raise the brokers' limit"
        ) from error


def check_authorization(
    start: Start, settings: WriterSettings, sources: Collection[str], deadline: Deadline
) -> None:
    """Raise `AuthorizationError` if a query lacks ACLs, as far as its topics are known."""
    connections = start.target

    def join() -> None:
        check_membership(connections, settings.group_id, deadline)

    def begin() -> None:
        check_transactions(connections, settings, deadline)

    needed = query_acls(settings.group_id, settings.id_prefix, sources, settings.target_topics)
    on_topics = [acl for acl in needed if acl.resource is ResourceType.TOPIC]
    # The same request also checks ACLs that the query can do without.
    lacking = _lacking(start, [*on_topics, *_configs(settings)], deadline)
    missing = [acl for acl in on_topics if acl in lacking]
    codes = [Code.TOPIC_AUTHORIZATION_FAILED.value] if missing else []

    denied = _denied(start, "membership", join), _denied(start, "transactions", begin)
    for code in filter(None, denied):
        missing += [acl for acl in needed if acl.resource is DENIED[code]]
        codes.append(code)
    if missing:
        raise AuthorizationError(
            f"{code_names(codes)}: {connections.principal.lacks(missing)}", codes[0], missing
        )


def _denied(start: Start, what: str, check: Callable[[], None]) -> int | None:
    try:
        start.cached(what, check)
    except AuthorizationError as error:
        return error.code
    return None


def _lacking(start: Start, wanted: Collection[Acl], deadline: Deadline) -> list[Acl]:
    """Return the wanted topic ACLs that this client lacks, except for topics that don't exist."""
    unknown = [acl for acl in wanted if not start.remembers(acl)]
    if not unknown:
        return []
    granted = cluster.granted_acls(start.target, unknown, deadline)
    for acl in unknown:
        if granted.get(acl):
            start.remember(acl)
    return [acl for acl in unknown if granted.get(acl) is False]


def _configs(settings: WriterSettings) -> list[Acl]:
    return [describe_configs(topic) for topic in settings.target_topics]


def warn_of_unknown_limits(start: Start, settings: WriterSettings, deadline: Deadline) -> None:
    """Log a warning if the query may not see which records its target topics accept."""
    if missing := _lacking(start, _configs(settings), deadline):
        warn(
            logger,
            "EOS53",
            "group %s: %s. Until then, a record that these topics do not accept is noticed only "
            "when a broker refuses it, which ends the query, even with a dead-letter topic. If a "
            "topic's max.message.bytes is below 1 MB, set kafka['batch.size'] to that value",
            settings.group_id,
            start.target.principal.lacks(missing),
        )


def check_cluster(
    start: Start, settings: WriterSettings, sources: Collection[str], deadline: Deadline
) -> int:
    """Check brokers, ACLs and topics; return the newest usable version of TxnOffsetCommit."""
    version = check_brokers(start, settings, deadline)
    check_authorization(start, settings, sources, deadline)
    check_target_topic(start, settings.topic, settings, deadline)
    if settings.dead_letters is not None:
        topic = settings.dead_letters.topic
        check_target_topic(start, topic, settings, deadline, "dead_letters.topic")
    return version
