"""A cache of topics by name, for source topics and targets: the metadata cache of KIP-1319."""

import contextlib
import math
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from cachetools import TTLCache

from spark_eos._client.header_values import topic_name
from spark_eos._kafka import cluster
from spark_eos._kafka.cluster import NO_ID, TopicInfo
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline, RetriableError
from spark_eos.acls import Operation
from spark_eos.errors import DeadlineExceededError, OffsetsLostError, TopicNotFoundError
from spark_eos.options import Limits

# Brokers don't let clients write to these topics.
_INTERNAL: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)


class MissingTopicsError(TopicNotFoundError):
    """Topics don't exist, and were not created within the time limit."""

    def __init__(self, names: Iterable[str], reason: str) -> None:
        self.names = sorted(names)
        self.reason = reason
        super().__init__(f"topic {quoted(self.names)} does not exist: {reason}")


class TopicCache:
    """A cache of topics; not thread-safe."""

    def __init__(self, connections: Connections, limits: Limits) -> None:
        self._connections = connections
        self._max_block = limits.max_block_ms / 1000
        self._topics: TTLCache[str, TopicInfo] = TTLCache(
            math.inf, limits.metadata_max_idle_ms / 1000
        )

    def get(
        self, names: Collection[str], operation: Operation = Operation.DESCRIBE
    ) -> dict[str, TopicInfo]:
        """Return topics; for uncached topics, ask the cluster until they exist."""
        cached = {}
        for name in names:
            topic = self._topics.get(name)
            if topic is not None:
                # Setting the entry again restarts its expiry timer.
                cached[name] = self._topics[name] = topic
        missing = set(names) - cached.keys()
        return {**cached, **self._wait_for(missing, operation)} if missing else cached

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def refresh(
        self, names: Collection[str], operation: Operation = Operation.DESCRIBE
    ) -> dict[str, TopicInfo]:
        """Like `get`, but asks the cluster even for cached topics."""
        for name in names:
            self._topics.pop(name, None)
        return self.get(names, operation)

    def look(
        self, names: Collection[str], operation: Operation = Operation.DESCRIBE
    ) -> dict[str, TopicInfo]:
        """Ask the cluster for topics without waiting for missing ones, which are left out."""
        deadline = Deadline(self._max_block, "max_block_ms")
        topics = cluster.topics(self._connections, names, deadline, operation)
        self._topics.update(topics)
        return topics

    def wait_for_partitions(self, wanted: Mapping[str, int], operation: Operation) -> bool:
        """Wait up to max_block_ms until topics have enough partitions; return True if they do."""
        deadline = Deadline(self._max_block, "max_block_ms")

        def attempt() -> None:
            topics = self.look(wanted, operation)
            if any(name in topics and topics[name].partitions < wanted[name] for name in wanted):
                raise RetriableError("a topic has too few partitions")

        with contextlib.suppress(DeadlineExceededError):
            deadline.attempts("looking up partitions")(attempt)
            return True
        return False

    def clear(self) -> None:
        self._topics.clear()

    def _wait_for(self, names: Collection[str], operation: Operation) -> dict[str, TopicInfo]:
        impossible = {name: why for name in names if (why := why_impossible(name, operation))}
        if impossible:
            raise MissingTopicsError(impossible, ", ".join(sorted({*impossible.values()})))
        deadline = Deadline(self._max_block, "max_block_ms")
        topics: dict[str, TopicInfo] = {}
        missing = set(names)
        answered = False

        def attempt() -> None:
            nonlocal answered
            answered = False
            topics.update(cluster.topics(self._connections, missing, deadline, operation))
            missing.difference_update(topics)
            answered = True
            if missing:
                raise RetriableError(f"topic {quoted(missing)} does not exist")

        try:
            deadline.attempts("looking up topics")(attempt)
        except DeadlineExceededError as error:
            if not answered:
                raise
            waited = f"waited {deadline.seconds:g} s for it ({deadline.setting})"
            raise MissingTopicsError(missing, waited) from error
        finally:
            self._topics.update(topics)
        return topics


def source_topics(
    cache: TopicCache, names: Collection[str], known: Mapping[str, uuid.UUID | None], group_id: str
) -> dict[str, TopicInfo]:
    """Look up source topics and check that the group's offsets belong to them."""
    try:
        topics = cache.refresh(names, Operation.READ)
    except MissingTopicsError as error:
        raise TopicNotFoundError(
            f"source topic {quoted(error.names)} no longer exists: {error.reason}. "
            f"{_what_to_do(group_id)}"
        ) from error
    for name, topic in topics.items():
        before = known.get(name) or NO_ID
        if before not in (NO_ID, topic.topic_id):
            raise recreated(name, before, topic.topic_id, group_id)
    return topics


def recreated(name: str, before: uuid.UUID, now: uuid.UUID, group_id: str) -> OffsetsLostError:
    """Build the error for a source topic that was recreated after the group's last commit."""
    return OffsetsLostError(
        f"source topic {name!r} was deleted and recreated: its topic id was {before} and is "
        f"{now}. {_what_to_do(group_id)}"
    )


def _what_to_do(group_id: str) -> str:
    return (
        f"Offsets of group {group_id!r} and of the checkpoint belong to the deleted topic, so none "
        "are committed. Start with another group_id and another checkpoint_location"
    )


def quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def why_impossible(name: str, operation: Operation) -> str | None:
    """Return why a topic of this name can't exist or be written; None if it can."""
    if operation is Operation.WRITE and name in _INTERNAL:
        return "it is an internal topic of Kafka"
    return "no topic can have such a name" if topic_name(name) is None else None
