"""How spark-eos interprets Kafka's error codes."""

import enum
from collections.abc import Iterable, Mapping
from typing import Final

from kafka import errors as kafka_errors

from spark_eos.acls import Acl, Principal, ResourceType
from spark_eos.errors import AuthenticationError, AuthorizationError, KafkaResponseError


class Code(enum.IntEnum):
    """Kafka error codes that spark-eos handles, with their names in Kafka's protocol."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    GROUP_ID_NOT_FOUND = 69
    FENCED_INSTANCE_ID = 82
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    STALE_MEMBER_EPOCH = 113
    TRANSACTION_ABORTABLE = 120
    GROUP_DELETION_FAILED = 134
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135


class Verdict(enum.IntEnum):
    """How to react to a TxnOffsetCommit error code; the greatest of several verdicts counts.

    A task aborts its transaction if the verdict is REJECTED or greater.
    """

    ACCEPTED = 0
    RETRY = 1
    REDISCOVER = 2
    REJECTED = 3
    FENCED = 4
    REFUSED = 5


_VERDICTS = {
    Code.NONE: Verdict.ACCEPTED,
    Code.UNKNOWN_TOPIC_ID: Verdict.RETRY,
    Code.UNKNOWN_TOPIC_OR_PARTITION: Verdict.RETRY,
    Code.COORDINATOR_LOAD_IN_PROGRESS: Verdict.RETRY,
    Code.CONCURRENT_TRANSACTIONS: Verdict.RETRY,
    Code.INVALID_TXN_STATE: Verdict.RETRY,
    Code.COORDINATOR_NOT_AVAILABLE: Verdict.REDISCOVER,
    Code.NOT_COORDINATOR: Verdict.REDISCOVER,
    Code.GROUP_ID_NOT_FOUND: Verdict.REJECTED,
    Code.STALE_MEMBER_EPOCH: Verdict.REJECTED,
    Code.UNKNOWN_MEMBER_ID: Verdict.REJECTED,
    Code.FENCED_INSTANCE_ID: Verdict.REJECTED,
    Code.FENCED_MEMBER_EPOCH: Verdict.REJECTED,
    Code.ILLEGAL_GENERATION: Verdict.REJECTED,
    Code.INVALID_PRODUCER_EPOCH: Verdict.FENCED,
    Code.INVALID_PRODUCER_ID_MAPPING: Verdict.FENCED,
    Code.PRODUCER_FENCED: Verdict.FENCED,
    Code.TRANSACTION_ABORTABLE: Verdict.FENCED,
}


# Authorization error codes, with the type of resource that each refers to.
DENIED: Final[Mapping[int, ResourceType]] = {
    Code.TOPIC_AUTHORIZATION_FAILED: ResourceType.TOPIC,
    Code.GROUP_AUTHORIZATION_FAILED: ResourceType.GROUP,
    Code.CLUSTER_AUTHORIZATION_FAILED: ResourceType.CLUSTER,
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ResourceType.TRANSACTIONAL_ID,
}

# Codes to retry with the same coordinator.
RETRIED: Final = frozenset(code for code, verdict in _VERDICTS.items() if verdict is Verdict.RETRY)


def verdict(codes: Iterable[int]) -> Verdict:
    """Return one verdict on all codes in an answer: a partial failure must abort."""
    # An unknown code, or no code at all, never counts as success.
    return max((_VERDICTS.get(code, Verdict.REFUSED) for code in codes), default=Verdict.REFUSED)  # type: ignore[call-overload]


def code_name(code: int) -> str:
    known = {member.value: member.name for member in Code}
    name = known.get(code) or kafka_errors.for_code(code).message
    return f"{code} {name}"


def code_names(codes: Iterable[int]) -> str:
    """List the distinct error codes other than 0 with their names, in numerical order."""
    return ", ".join(code_name(code) for code in sorted(set(codes)) if code != Code.NONE)


TRANSACTION_VERSION: Final = 2
"""The lowest supported level of the feature ``transaction.version`` (KIP-890)."""

_REMEDIES: Final[Mapping[int, str]] = {
    Code.OFFSET_METADATA_TOO_LARGE: "raise the brokers' offset.metadata.max.bytes",
    Code.INVALID_GROUP_ID: "choose another group_id",
    Code.INVALID_REQUEST: "the broker's log may say what is wrong with the request",
}


def remedy(code: int, needed: Iterable[Acl], principal: Principal) -> str:
    """Return advice for the operator about an error code; "" if there is none."""
    if missing := _missing(code, needed):
        return principal.lacks(missing)
    if code == Code.UNSUPPORTED_VERSION:
        return f"upgrade the cluster's feature: {transactions_upgrade(principal)}"
    return _REMEDIES.get(code, "")


def feature_upgrade(cluster: Principal, feature: str, level: int) -> str:
    """Return the command that upgrades a feature of a cluster."""
    return cluster.tool("kafka-features.sh", "upgrade", "--feature", f"{feature}={level}")


def transactions_upgrade(cluster: Principal) -> str:
    """Return the command that enables KIP-890 transactions in a cluster."""
    return feature_upgrade(cluster, "transaction.version", TRANSACTION_VERSION)


def refusal(
    what: str, code: int, needed: Iterable[Acl], principal: Principal
) -> KafkaResponseError:
    """Build the error for a final error code: an `AuthorizationError` if ACLs are missing."""
    missing = _missing(code, needed)
    text = f"{what}: {code_name(code)}"
    if code in DENIED:
        how = f": {principal.lacks(missing)}" if missing else ""
        return AuthorizationError(text + how, code, missing)
    return KafkaResponseError(text, code)


def is_final(error: Exception) -> bool:
    """Return True if retrying the request can't succeed."""
    if isinstance(error, KafkaResponseError):
        known = kafka_errors.for_code(error.code)
        # UNKNOWN_SERVER_ERROR can have any cause, even a temporary one.
        return error.code in DENIED or not (
            error.code == Code.UNKNOWN_SERVER_ERROR or getattr(known, "retriable", False)
        )
    return isinstance(error, AuthenticationError)


def _missing(code: int, needed: Iterable[Acl]) -> list[Acl]:
    return [acl for acl in needed if acl.resource is DENIED.get(code)]
