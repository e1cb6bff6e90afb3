"""Renewing a group's offsets while no run holds its members, since each expires by its own age.

A run begins with a query's first batch, and Spark runs no batch while there are no records: a job
that is started every day, or a query that was started anew, may go without one for weeks.
"""

import contextlib
import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Final

from spark_eos.client.error_codes import code_names
from spark_eos.client.settings import ClientSettings
from spark_eos.driver.membership import GroupMembership
from spark_eos.errors import AuthorizationError
from spark_eos.kafka import cluster
from spark_eos.kafka.cluster import TopicInfo
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline
from spark_eos.kafka.groups import describe_group
from spark_eos.kafka.offset_metadata import CommittedOffset, KnownPartitions
from spark_eos.kafka.offsets import all_group_offsets, commit_offsets, group_offsets
from spark_eos.kafka.transactions import MemberIdentity

logger = logging.getLogger(__name__)

SECONDS: Final = 3600.0
"""After so long offsets that do not move are committed once more. The brokers' own default lets
them expire after seven days (``offsets.retention.minutes``), and a minute is the least."""


def renew_unattended(wire: Wire, group_id: str, deadline: Deadline) -> None:
    """Commits all offsets of a group once more, as a member of it, if it has no members now.

    Whoever holds the members of a group that has some renews its offsets. What comes in the way
    is logged: the next batch, or the next renewal, meets it again.

    Args:
        wire: the connections.
        group_id: the consumer group.
        deadline: over all calls.
    """
    try:
        if describe_group(wire, group_id, deadline).members:
            return
        found = all_group_offsets(wire, group_id, deadline)
        if not KnownPartitions.of(found).partitions:
            # No query of spark-eos has written yet.
            return
        topics = _topics(wire, {topic for topic, _ in found}, deadline)
        offsets = {
            (topic, index): committed
            for (topic, index), committed in found.items()
            if topic in topics and index < topics[topic].partitions
        }
        if offsets:
            _renew(wire, group_id, topics, offsets, deadline)
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing is lost by it yet
        logger.info("group %s: offsets are not renewed: %s", group_id, error)


def _topics(wire: Wire, names: Iterable[str], deadline: Deadline) -> dict[str, TopicInfo]:
    """Those that exist and may be described: a topic that is not read any more may be neither."""
    found: dict[str, TopicInfo] = {}
    for name in names:
        with contextlib.suppress(AuthorizationError):
            found |= cluster.topics(wire, [name], deadline)
    return found


def _renew(
    wire: Wire,
    group_id: str,
    topics: Mapping[str, TopicInfo],
    offsets: Mapping[tuple[str, int], CommittedOffset],
    deadline: Deadline,
) -> None:
    # As a member, so that a request that comes late is refused: it would take back what a run has
    # committed meanwhile.
    membership = GroupMembership(
        wire,
        group_id,
        max_members=1,
        group_timeout_ms=max(1_000, int(deadline.remaining() * 1000)),
        watch=lambda: True,
        at_end=lambda: None,
        renews_only=True,
    )
    try:
        membership.start(topics, offsets)
        # An offset that an open transaction holds may move at any moment: then this fails.
        stable = group_offsets(
            wire,
            group_id,
            offsets,
            membership.topic_ids,
            deadline,
            member=membership.any_member(),
            wait=False,
        )
        by_member: dict[MemberIdentity, dict[tuple[str, int], CommittedOffset]] = {}
        for place, member in membership.identities().items():
            if place in stable:
                by_member.setdefault(member, {})[place] = stable[place]
        for member, own in by_member.items():
            codes = commit_offsets(
                wire,
                group_id,
                (member.member_id, member.epoch, member.instance_id),
                {place: committed.offset for place, committed in own.items()},
                membership.topic_ids,
                deadline,
                # As it was: an operator's word, or a mark that records may not be written.
                metadata={place: committed.metadata for place, committed in own.items()},
            )
            if any(codes.values()):
                names = code_names(codes.values())
                logger.info("group %s: offsets not renewed: %s", group_id, names)
    finally:
        membership.leave()


_renewed: dict[tuple[str, str], threading.Event] = {}
_lock = threading.Lock()


def renew_hourly(client: ClientSettings, group_id: str, seconds: float) -> None:
    """Renews a group's offsets every hour while it has no members, as long as this process lives.

    Args:
        client: the client settings.
        group_id: the consumer group.
        seconds: what one renewal may take.
    """
    key = (client.bootstrap_servers, group_id)
    with _lock:
        if key in _renewed:
            return
        ended = _renewed[key] = threading.Event()

    def repeat() -> None:
        while not ended.wait(SECONDS):
            with contextlib.closing(Wire(client)) as wire:
                renew_unattended(wire, group_id, Deadline(seconds, "connect_timeout_ms"))

    threading.Thread(target=repeat, name=f"spark-eos-renewal-{group_id}", daemon=True).start()


def end_renewal(client: ClientSettings, group_id: str) -> None:
    """Ends what `renew_hourly` has begun."""
    with _lock:
        ended = _renewed.pop((client.bootstrap_servers, group_id), None)
    if ended is not None:
        ended.set()
