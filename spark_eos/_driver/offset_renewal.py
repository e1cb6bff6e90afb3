"""Renews a group's offsets while no run holds its members, since each expires by its own age.

A run begins with a query's first batch, and Spark runs no batch while there are no records: a query
that is started every day, or was just restarted, may have no batch for weeks.
"""

import contextlib
import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._client.error_codes import code_names
from spark_eos._driver.assigned_partitions import by_member
from spark_eos._driver.membership import GroupMembership
from spark_eos._kafka import cluster
from spark_eos._kafka.cluster import TopicInfo
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.groups import describe_group
from spark_eos._kafka.offset_metadata import CommittedOffset, KnownPartitions
from spark_eos._kafka.offsets import all_group_offsets, commit_offsets, group_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import AuthorizationError

logger = logging.getLogger(__name__)

SECONDS: Final = 3600.0
"""Seconds after which offsets that have not moved are committed again. By default the brokers let
them expire after seven days (``offsets.retention.minutes``), at the shortest after one minute."""


def renew_unattended(connections: Connections, group_id: str, deadline: Deadline) -> None:
    """Commits all offsets of a group again, as a member of it, if it has no members now.

    If it has members, the run that holds them renews its offsets. Errors are only logged: the next
    batch, or the next renewal, meets them again.
    """
    try:
        if describe_group(connections, group_id, deadline).members:
            return
        found = all_group_offsets(connections, group_id, deadline)
        if not KnownPartitions.of(found).partitions:
            # No query of spark-eos has written with this group yet.
            return
        topics = _topics(connections, {topic for topic, _ in found}, deadline)
        offsets = {
            partition: committed
            for partition, committed in found.items()
            if partition.topic in topics
            and partition.partition < topics[partition.topic].partitions
        }
        if offsets:
            _renew(connections, group_id, topics, offsets, deadline)
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing is lost yet
        logger.info("group %s: offsets are not renewed: %s", group_id, error)


def _topics(
    connections: Connections, names: Iterable[str], deadline: Deadline
) -> dict[str, TopicInfo]:
    """The topics that exist and may be described; one that is no longer read may be neither."""
    found: dict[str, TopicInfo] = {}
    for name in names:
        with contextlib.suppress(AuthorizationError):
            found |= cluster.topics(connections, [name], deadline)
    return found


def _renew(
    connections: Connections,
    group_id: str,
    topics: Mapping[str, TopicInfo],
    offsets: Mapping[TopicPartition, CommittedOffset],
    deadline: Deadline,
) -> None:
    # As a member, so that a request that arrives late is refused: it would undo what a run has
    # committed in the meantime.
    membership = GroupMembership(
        connections,
        group_id,
        max_members=1,
        group_timeout_ms=max(1_000, int(deadline.remaining() * 1000)),
        watch=lambda: True,
        at_end=lambda: None,
        renews_only=True,
    )
    try:
        membership.start(topics, offsets)
        # An offset that an open transaction holds may move at any moment; then this raises.
        stable = group_offsets(
            connections,
            group_id,
            offsets,
            membership.topic_ids,
            deadline,
            member=membership.any_member(),
            wait=False,
        )
        for member, own in by_member(stable, membership.identities()).items():
            codes = commit_offsets(
                connections,
                group_id,
                member,
                {partition: committed.offset for partition, committed in own.items()},
                membership.topic_ids,
                deadline,
                # Unchanged: an operator's empty text, or a mark that records may not be written.
                metadata={partition: committed.metadata for partition, committed in own.items()},
            )
            if any(codes.values()):
                names = code_names(codes.values())
                logger.info("group %s: offsets are not renewed: %s", group_id, names)
    finally:
        membership.leave()


class _Renewal(NamedTuple):
    settings: WriterSettings
    ended: threading.Event


_renewals: dict[tuple[str, str], _Renewal] = {}
_lock = threading.Lock()


def renew_hourly(settings: WriterSettings) -> None:
    """Renews a group's offsets every hour while it has no members, until `end_renewal`.

    Of a process's sinks of a group the newest does so, whose credentials are the newest, too.
    """
    client, group_id = settings.client, settings.group_id
    key, ended = (client.bootstrap_servers, group_id), threading.Event()
    with _lock:
        before = _renewals.get(key)
        if before is not None and before.settings is settings:
            return
        if before is not None:
            before.ended.set()
        _renewals[key] = _Renewal(settings, ended)

    def repeat() -> None:
        while not ended.wait(SECONDS):
            with contextlib.closing(Connections(client)) as connections:
                renew_unattended(connections, group_id, settings.connect_deadline())

    threading.Thread(target=repeat, name=f"spark-eos-renewal-{group_id}", daemon=True).start()


def end_renewal(settings: WriterSettings) -> None:
    """Ends what `renew_hourly` began with these settings, if it still goes on."""
    key = (settings.client.bootstrap_servers, settings.group_id)
    with _lock:
        found = _renewals.get(key)
        if found is not None and found.settings is settings:
            del _renewals[key]
            found.ended.set()
