"""Finds out whether and how spark-eos can run on a cluster, by the features of its brokers."""

from collections.abc import Mapping
from dataclasses import dataclass

from spark_eos._checks.preflight import offset_commit_version
from spark_eos._kafka.cluster import BrokerFeatures
from spark_eos._kafka.protocol import ConsumerGroupHeartbeatRequest, TxnOffsetCommitRequest
from spark_eos.acls import Principal
from spark_eos.errors import UnsupportedBrokerError


@dataclass(frozen=True)
class BrokerStatus:
    """One broker's highest versions of the requests that matter here; None if unsupported."""

    node_id: int
    txn_offset_commit: int | None  # version 6 commits by topic id (KIP-1319)
    consumer_group_heartbeat: int | None  # KIP-848


@dataclass(frozen=True)
class ClusterStatus:
    """Says whether and how spark-eos can run on the cluster."""

    brokers: tuple[BrokerStatus, ...]  # the brokers that answer
    transaction_version: int  # the finalized level of the feature transaction.version
    # The TxnOffsetCommit version that a query uses here, 5 or 6; None if no query can run.
    offset_commit_version: int | None
    problem: str | None  # why no query can run here, and the remedy


def cluster_status(features: Mapping[int, BrokerFeatures], where: Principal) -> ClusterStatus:
    """Return whether and how a query can run on brokers with these features."""
    # A query talks to all brokers, so it can only use what every broker supports.
    spoken = set.intersection(*(set(f.versions) for f in features.values()))
    common = BrokerFeatures(
        versions={key: min(f.versions[key] for f in features.values()) for key in spoken},
        features=next(iter(features.values())).features,
    )
    version, problem = None, None
    try:
        version = offset_commit_version(common, where)
    except UnsupportedBrokerError as error:
        problem = str(error)
    return ClusterStatus(
        brokers=tuple(
            BrokerStatus(
                node_id=node,
                txn_offset_commit=f.versions.get(TxnOffsetCommitRequest.API_KEY),
                consumer_group_heartbeat=f.versions.get(ConsumerGroupHeartbeatRequest.API_KEY),
            )
            for node, f in features.items()
        ),
        transaction_version=common.features.get("transaction.version", 0),
        offset_commit_version=version,
        problem=problem,
    )
