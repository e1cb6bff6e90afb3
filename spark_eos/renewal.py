"""Renewing a group's offsets while no run holds its members, since each expires by its own age.

A run begins with a query's first batch, and Spark runs no batch while there are no records: a job
that is started every day, or a query that was started anew, may go without one for weeks.
"""

import contextlib
import logging
import threading
import weakref
from collections.abc import Mapping
from typing import Final

from spark_eos import calls
from spark_eos.calls import TopicInfo
from spark_eos.coordinator import GroupCoordinator
from spark_eos.deadline import Deadline
from spark_eos.errors import SparkEosError, code_names
from spark_eos.group_calls import describe_group
from spark_eos.offset_calls import all_group_offsets, commit_offsets, group_offsets
from spark_eos.offset_metadata import CommittedOffset, KnownPartitions
from spark_eos.settings import WriterSettings
from spark_eos.wire import Wire

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
        topics = calls.topics(wire, {topic for topic, _ in found}, deadline)
        offsets = {
            (topic, index): committed
            for (topic, index), committed in found.items()
            if topic in topics and index < topics[topic].partitions
        }
        if offsets:
            _renew(wire, group_id, topics, offsets, deadline)
    except SparkEosError as error:
        logger.info("group %s: offsets are not renewed: %s", group_id, error)


def _renew(
    wire: Wire,
    group_id: str,
    topics: Mapping[str, TopicInfo],
    offsets: Mapping[tuple[str, int], CommittedOffset],
    deadline: Deadline,
) -> None:
    # As a member, so that a request that comes late is refused: it would take back what a run has
    # committed meanwhile.
    coordinator = GroupCoordinator(
        wire,
        group_id,
        most_members=1,
        group_timeout=max(1.0, deadline.remaining()),
        watch=lambda: True,
        at_end=lambda: None,
    )
    try:
        coordinator.start(topics, offsets)
        # An offset that an open transaction holds may move at any moment: then this fails.
        stable = group_offsets(
            wire,
            group_id,
            offsets,
            coordinator.topic_ids,
            deadline,
            member=coordinator.any_member(),
            wait=False,
        )
        (member,) = set(coordinator.identities().values())
        codes = commit_offsets(
            wire,
            group_id,
            (member.member_id, member.epoch, member.instance_id),
            {place: committed.offset for place, committed in stable.items()},
            coordinator.topic_ids,
            deadline,
            # As it was: an operator's word, or a mark that records may not be written.
            metadata={place: committed.metadata for place, committed in stable.items()},
        )
        if any(codes.values()):
            logger.info("group %s: offsets not renewed: %s", group_id, code_names(codes.values()))
    finally:
        coordinator.leave()


class Renewal:
    """Renews a group's offsets every hour while it has no members, as long as its owner lives.

    Args:
        owner: ends with it.
        settings: the writer's settings.
    """

    def __init__(self, owner: object, settings: WriterSettings) -> None:
        self._settings = settings
        self._ended = threading.Event()
        weakref.finalize(owner, self._ended.set)
        threading.Thread(
            target=self._repeat, name=f"spark-eos-renewal-{settings.group_id}", daemon=True
        ).start()

    def end(self) -> None:
        """Renews no more."""
        self._ended.set()

    def _repeat(self) -> None:
        while not self._ended.wait(SECONDS):
            settings = self._settings
            with contextlib.closing(Wire(settings.client)) as wire:
                deadline = Deadline(settings.connect_timeout, "connect_timeout")
                renew_unattended(wire, settings.group_id, deadline)
