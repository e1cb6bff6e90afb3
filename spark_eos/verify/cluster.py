"""What librdkafka's admin client tells of a cluster: topics, their partitions, and offsets."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

import confluent_kafka
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
)
from kafka import TopicPartition

from spark_eos._client.settings import ClientSettings
from spark_eos.acls import describe_configs
from spark_eos.errors import DeadlineExceededError, TopicNotFoundError, VerificationError

NO_ID: Final = uuid.UUID(int=0)
"""The id of topics in clusters whose topics have none (KIP-516)."""
_64_BITS: Final = (1 << 64) - 1


_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"
_DENIED: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


class _DeniedError(VerificationError):
    """The client may not ask this."""


class Identity(NamedTuple):
    """What tells a cluster and its topics from others of the same names: its id, and theirs."""

    cluster: str
    topics: Mapping[str, uuid.UUID]


class Cluster:
    """Questions to one cluster; each raises DeadlineExceededError if no answer comes in time."""

    def __init__(self, settings: ClientSettings, timeout: float) -> None:
        self.settings = settings
        self._timeout = timeout
        self._admin = AdminClient(dict(settings.for_consumer()))

    def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """The number of partitions of each topic; raises TopicNotFoundError."""
        return {topic: len(found.partitions) for topic, found in self._described(topics).items()}

    def all_partition_counts(self) -> dict[str, int]:
        """The number of partitions of each topic that the client may describe."""
        try:
            listed = self._admin.list_topics(timeout=self._timeout)
        except KafkaException as error:
            raise self._failed("all topics", error) from error
        return {name: len(topic.partitions) for name, topic in listed.topics.items()}

    def not_compacted(self, topics: Sequence[str]) -> list[str]:
        """Checks that topics are not compacted; returns notes on those of which it is not known.

        Raises:
            VerificationError: A topic is compacted.
        """
        asked = self._admin.describe_configs(
            [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics],
            request_timeout=self._timeout,
        )
        notes = []
        for resource, future in asked.items():
            topic = resource.name
            try:
                policy = self._result(f"configs of topic {topic!r}", future)[_POLICY].value
            except _DeniedError:
                acl = describe_configs(topic)
                notes.append(
                    f"whether topic {topic!r} is compacted is not known, for lack of {acl}"
                )
                continue
            if _COMPACT in policy:
                raise VerificationError(
                    f"topic {topic!r} is compacted ({_POLICY}={policy}): what its cleaner removes "
                    "would look lost. Compare the output's last value of each key with your own "
                    "(--expect with --key)"
                )
        return notes

    def leaders(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """The id of the leading broker of each partition that has one."""
        return {
            TopicPartition(topic, partition.id): partition.leader.id
            for topic, found in self._described(topics).items()
            for partition in found.partitions
            if partition.leader is not None
        }

    def identity(self, topics: Sequence[str]) -> Identity:
        """The ids of the cluster and of topics."""
        cluster = self._admin.describe_cluster(request_timeout=self._timeout)
        return Identity(
            self._result("the cluster", cluster).cluster_id or "",
            {topic: _id(found.topic_id) for topic, found in self._described(topics).items()},
        )

    def lows(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first existing offsets."""
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        return self._offsets(partitions, earliest, IsolationLevel.READ_UNCOMMITTED)

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._offsets(partitions, latest, IsolationLevel.READ_UNCOMMITTED)

    def stable_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The last stable offsets: what lies below them is committed or aborted."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return self._offsets(partitions, latest, IsolationLevel.READ_COMMITTED)

    def _offsets(
        self,
        partitions: Collection[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel,
    ) -> dict[TopicPartition, int]:
        asked = self._admin.list_offsets(
            {confluent_kafka.TopicPartition(*partition): spec for partition in partitions},
            isolation_level=isolation,
            request_timeout=self._timeout,
        )
        return {
            TopicPartition(at.topic, at.partition): self._result(
                f"offsets of {at.topic}:{at.partition}", future
            ).offset
            for at, future in asked.items()
        }

    def _described(self, topics: Sequence[str]) -> dict[str, Any]:
        asked = self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=self._timeout
        )
        return {topic: self._result(f"topic {topic!r}", one) for topic, one in asked.items()}

    def _result(self, what: str, future: "Future[Any]") -> Any:
        try:
            return future.result()
        except KafkaException as error:
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: KafkaException) -> Exception:
        code = error.args[0].code()
        if code in _DENIED:
            return _DeniedError(f"{what}: {reason_of(error)}")
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return TopicNotFoundError(f"{what} does not exist")
        if code in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
            return DeadlineExceededError(
                f"{what}: no answer of bootstrap.servers={self.settings.bootstrap_servers!r} "
                f"within {self._timeout:g} s (--timeout)"
            )
        return VerificationError(f"{what}: {reason_of(error)}")


def _id(found: Any) -> uuid.UUID:
    high, low = found.get_most_significant_bits(), found.get_least_significant_bits()
    return uuid.UUID(int=(high & _64_BITS) << 64 | low & _64_BITS)


def reason_of(error: KafkaException) -> str:
    """The reason that librdkafka gives for an error, without the code."""
    found = error.args[0]
    return str(found.str() if isinstance(found, KafkaError) else found)
