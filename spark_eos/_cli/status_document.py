"""A query's status as one JSON document. Its keys are a public interface: don't rename any."""

import json
from collections.abc import Iterable
from typing import Any

from spark_eos._admin.group_progress import PartitionStatus, StagedStatus
from spark_eos._admin.status import Status
from spark_eos._admin.status_tables import host
from spark_eos._kafka.blocked_partitions import BlockedPartition
from spark_eos._kafka.groups import DescribedMember
from spark_eos._kafka.open_transactions import OpenTransaction
from spark_eos._kafka.topic_partition import TopicPartition


def as_json(status: Status) -> str:
    """Returns the document. Null means unknown; ``*_ms`` are milliseconds, times since 1970."""
    cluster = status.cluster
    document = {
        "group": {
            "id": status.group_id,
            "state": status.group.state,
            "epoch": status.group.epoch,
            "assignment_epoch": status.group.assignment_epoch,
        },
        "members": [_member(member) for member in status.group.members],
        "partitions": [_partition(partition) for partition in status.partitions],
        "lag": status.lag,
        # Null if nothing in the group's offsets tells, as with direct delivery.
        "delivery": status.delivery,
        "staged": None if status.staged is None else _staged(status.staged),
        # Whose text another client has written.
        "foreign_offsets": _topic_partitions(status.foreign),
        "transactional_id_prefix": status.prefix,
        "open_transactions": [_transaction(t, status.taken_at) for t in status.transactions],
        "held_back": [_held_back(one, status.taken_at) for one in status.held_back],
        # Null and missing is also what only these know.
        "silent_brokers": list(status.silent),
        "brokers": [
            {
                "id": broker.node_id,
                "txn_offset_commit": broker.txn_offset_commit,
                "consumer_group_heartbeat": broker.consumer_group_heartbeat,
            }
            for broker in cluster.brokers
        ],
        "transaction_version": cluster.transaction_version,
        "offset_commit_version": cluster.offset_commit_version,
        "commits_by_topic_id": cluster.offset_commit_version == 6,
        "problem": cluster.problem,
    }
    return json.dumps(document, indent=2)


def _member(member: DescribedMember) -> dict[str, Any]:
    return {
        "instance_id": member.instance_id,
        "member_id": member.member_id,
        "epoch": member.epoch,
        "client_id": member.client_id,
        "host": host(member),
        "assigned": None if member.assigned is None else _topic_partitions(member.assigned),
    }


def _partition(partition: PartitionStatus) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "committed_offset": partition.committed,
        "last_stable_offset": partition.last_stable,
        "high_watermark": partition.high_watermark,
        "lag": partition.lag,
        "member_id": partition.member,
    }


def _staged(staged: StagedStatus) -> dict[str, Any]:
    batch = staged.batch
    return {
        "progress_topic": staged.topic,
        "query_id": batch.query,
        "batch": batch.batch,
        "directory": batch.directory,
        "rows": batch.rows,
        "files": batch.files,
        "files_written": staged.files_written,
        "written": staged.written,
    }


def _transaction(transaction: OpenTransaction, now: float) -> dict[str, Any]:
    age = transaction.age(now)
    return {
        "transactional_id": transaction.transactional_id,
        "state": transaction.state,
        "started_ms": transaction.started_ms,
        "age_seconds": None if age is None else round(age, 3),
        "timeout_ms": transaction.timeout_ms,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "partitions": _topic_partitions(transaction.partitions),
    }


def _held_back(one: BlockedPartition, now: float) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "last_stable_offset": one.last_stable,
        "high_watermark": one.high_watermark,
        "producer_id": one.producer_id,
        "transaction": None if one.transaction is None else _transaction(one.transaction, now),
        "may_read": one.may_read,
    }


def _topic_partitions(found: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [partition._asdict() for partition in sorted(found)]
