"""Queries one cluster for topics, offsets and more, with kafka-python's messages."""

import functools
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from kafka import TopicPartition
from kafka import errors as kafka_errors
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest, OffsetSpec
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest, MetadataRequest
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from spark_eos._client.connections import ConnectionManager
from spark_eos._client.kafka_logs import our_connections
from spark_eos._client.kafka_python import EventLoop
from spark_eos._client.settings import ClientSettings
from spark_eos.acls import describe_configs
from spark_eos.errors import DeadlineExceededError, TopicNotFoundError, VerificationError
from spark_eos.verify.partitions import by_topic, name_of

_PAUSE: Final = 0.05
# Maximum and minimum number of seconds for an attempt; leaders are looked up again afterwards.
_ATTEMPT: Final = 5.0
_SHORTEST: Final = 0.1
# Seconds after which a broker that does not answer counts as down.
_PATIENCE: Final = 3.0
# Time limit for connecting to a broker when any other broker can answer instead.
_CONNECT_MS: Final = 3_000
_LOST: Final = (
    kafka_errors.NodeNotReadyError,
    kafka_errors.UnknownBrokerIdError,
    kafka_errors.KafkaConnectionError,
    kafka_errors.RequestTimedOutError,
    kafka_errors.KafkaTimeoutError,
    kafka_errors.Cancelled,
    OSError,
)
_UNKNOWN_TOPIC: Final = kafka_errors.UnknownTopicOrPartitionError.errno
_DENIED: Final = (
    kafka_errors.TopicAuthorizationFailedError.errno,
    kafka_errors.ClusterAuthorizationFailedError.errno,
)
_TOPIC: Final = 2  # the type of a resource
_POLICY: Final = "cleanup.policy"
_Answer = TypeVar("_Answer")

NO_ID: Final = uuid.UUID(int=0)
"""The topic id in clusters whose topics have no ids (KIP-516)."""


def error_name(code: int) -> str:
    """Return a Kafka error code with its name, such as ``16 NOT_COORDINATOR``."""
    return f"{code} {kafka_errors.for_code(code).message}"


def cure_of(code: int | None) -> str:
    """Return the end of an error's text, which says how to get a missing permission."""
    if code not in {*_DENIED, kafka_errors.GroupAuthorizationFailedError.errno}:
        return ""
    return "; spark-eos acls --for verify prints the commands that grant what verify needs"


def check(code: int) -> None:
    """Raise kafka-python's exception for an error code other than 0."""
    if code:
        raise kafka_errors.for_code(code)


class Identity(NamedTuple):
    """The ids of a cluster and its topics, which distinguish them from others of the same names."""

    cluster: str
    topics: Mapping[str, uuid.UUID]


# Neither admin client is suitable. kafka-python's client doesn't wait for stable offsets, keeps
# using a coordinator that has moved, gives up on the first partition's error, and can't fetch
# control records. librdkafka's client aborts the process if the connection to a coordinator is lost
# at the wrong moment (librdkafka issue 4605).
class Cluster:
    """Connections to one cluster; raises an error at once if a listener refuses the client."""

    def __init__(self, settings: ClientSettings, timeout: float) -> None:
        self.settings = settings
        self.timeout = timeout
        # Names of the brokers that don't answer, by node id.
        self._silent: dict[int, str] = {}
        self._leaders: dict[TopicPartition, int] = {}
        configuration = settings.for_kafka_python()
        self._loop = EventLoop(configuration, our_connections)
        self._manager = ConnectionManager(self._loop, settings, configuration)
        try:
            self._manager.reach(timeout)
        except BaseException as error:
            self.close()
            if not isinstance(error, kafka_errors.KafkaError):
                raise
            raise DeadlineExceededError(
                f"no broker of bootstrap.servers={settings.bootstrap_servers!r} could be reached "
                f"within {timeout:g} s (--timeout): {self._manager.unreached()}"
            ) from error

    def close(self) -> None:
        """Close all connections and stop their thread."""
        self._loop.end(self._manager)

    # Requests -----------------------------------------------------------------------------------

    def ask(
        self, what: str, attempt: Callable[[float], _Answer], seconds: float = _ATTEMPT
    ) -> _Answer:
        """Call ``attempt`` with a time limit in seconds; retry it until the cluster's timeout."""
        until = time.monotonic() + self.timeout

        def once() -> _Answer:
            try:
                return attempt(max(_SHORTEST, min(seconds, until - time.monotonic())))
            except kafka_errors.KafkaError:
                self._leaders.clear()
                raise

        try:
            return Retrying(
                retry=retry_if_exception(lambda error: getattr(error, "retriable", False)),
                wait=wait_fixed(_PAUSE),
                stop=stop_after_delay(self.timeout),
                reraise=True,
            )(once)
        except kafka_errors.KafkaError as error:
            known = hasattr(error, "message") and not error.args
            reason = f"{what}: {error_name(error.errno) if known else error}"
            if error.retriable:
                raise DeadlineExceededError(
                    f"{reason}, for {self.timeout:g} s (--timeout)"
                ) from error
            raise VerificationError(reason + cure_of(getattr(error, "errno", None))) from error

    def send(self, request: Any, broker: int | None, seconds: float) -> Any:
        """Send a read-only request to a broker; if ``broker`` is None, any broker may answer."""
        milliseconds = max(1, int(seconds * 1000))
        try:
            return self._loop.run(self._manager.answer, request, broker, milliseconds, _CONNECT_MS)
        except _LOST as error:
            self._manager.expire_metadata()
            which = "any broker" if broker is None else f"broker {self._name(broker)}"
            raise kafka_errors.KafkaConnectionError(f"no answer from {which}: {error!r}") from error

    def ask_each(self, request: Any) -> dict[int, Any]:
        """Return the answers of all brokers; don't ask ``silent`` brokers again."""
        # Metadata may list a broker long after it has died.
        until = time.monotonic() + _PATIENCE
        answered: dict[int, Any] = {}
        while left := [
            node
            for node in sorted(self._manager.addresses())
            if node not in {*answered, *self._silent}
        ]:
            milliseconds = max(1, int((until - time.monotonic()) * 1000))
            asked = [(node, request) for node in left]
            answers = self._loop.run(self._manager.answers, asked, milliseconds)
            answered |= {
                node: answer
                for node, answer in zip(left, answers, strict=True)
                if answer is not None
            }
            if time.monotonic() >= until:
                self._silent |= {node: self._name(node) for node in left if node not in answered}
            else:
                time.sleep(_PAUSE)
        return answered

    @property
    def silent(self) -> tuple[str, ...]:
        """Brokers that don't answer, such as ``2 (host:9092)``."""
        return tuple(self._silent.values())

    def _name(self, broker: int) -> str:
        return f"{broker} ({self._manager.addresses().get(broker, 'unknown')})"

    def coordinator(self, kind: CoordinatorType, key: str, seconds: float) -> Any:
        """Ask any broker for a coordinator; the answer contains an error code or the node id."""
        request = FindCoordinatorRequest(key_type=kind.value, coordinator_keys=[key], min_version=4)
        return self.send(request, None, seconds).coordinators[0]

    # Topics -------------------------------------------------------------------------------------

    def partition_counts(self, topics: Collection[str] | None) -> dict[str, int]:
        """Return each topic's number of partitions; None means all topics we may describe."""
        topics_found = self.ask("topics", functools.partial(self._metadata, topics))
        counts = {topic.name: len(topic.partitions) for topic in topics_found.topics}
        return counts if topics is None else {topic: counts[topic] for topic in topics}

    def identity(self, topics: Collection[str]) -> Identity:
        """Return the ids of the cluster and of topics."""
        metadata = self.ask("topics", functools.partial(self._metadata, topics))
        ids = {topic.name: topic.topic_id or NO_ID for topic in metadata.topics}
        return Identity(metadata.cluster_id or "", ids)

    def _metadata(self, topics: Collection[str] | None, seconds: float) -> Any:
        wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics or ()]
        request = MetadataRequest(
            topics=None if topics is None else wanted, allow_auto_topic_creation=False
        )
        answer = self.send(request, None, seconds)
        for topic in answer.topics:
            if topic.error_code == _UNKNOWN_TOPIC:
                raise TopicNotFoundError(f"topic {topic.name!r} does not exist")
            error = kafka_errors.for_code(topic.error_code)
            if topic.error_code and not error.retriable:
                why = error_name(topic.error_code) + cure_of(topic.error_code)
                raise VerificationError(f"topic {topic.name!r}: {why}")
            check(topic.error_code)
        return answer

    def not_compacted(self, topics: Collection[str]) -> list[str]:
        """Raise VerificationError if a topic is compacted; return notes where that is unknown."""
        notes = []
        for topic in topics:
            policy = self.ask(
                f"configs of topic {topic!r}", functools.partial(self._cleanup_policy, topic)
            )
            if policy is None:
                acl = describe_configs(topic)
                notes.append(f"can't tell whether topic {topic!r} is compacted, for lack of {acl}")
            elif "compact" in policy:
                raise VerificationError(
                    f"topic {topic!r} is compacted ({_POLICY}={policy}): records that its cleaner "
                    "removes would look lost. Compare the last value of each key in the output "
                    "with the one you expect (--expect with --key)"
                )
        return notes

    def _cleanup_policy(self, topic: str, seconds: float) -> str | None:
        wanted = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=topic, configuration_keys=[_POLICY]
        )
        request = DescribeConfigsRequest(resources=[wanted], include_synonyms=False)
        result = self.send(request, None, seconds).results[0]
        if result.error_code in _DENIED:
            return None
        check(result.error_code)
        return str(result.configs[0].value)

    # Offsets ------------------------------------------------------------------------------------

    def lows(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first existing offsets."""
        return self._offsets(partitions, OffsetSpec.EARLIEST, IsolationLevel.READ_UNCOMMITTED)

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermarks."""
        return self._offsets(partitions, OffsetSpec.LATEST, IsolationLevel.READ_UNCOMMITTED)

    def stable_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offsets; all transactions below them have ended."""
        return self._offsets(partitions, OffsetSpec.LATEST, IsolationLevel.READ_COMMITTED)

    def _offsets(
        self, partitions: Collection[TopicPartition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[TopicPartition, int]:
        offsets: dict[TopicPartition, int] = {}
        while left := [partition for partition in partitions if partition not in offsets]:
            attempt = functools.partial(self._offsets_of_first, left, spec, isolation)
            offsets |= self.ask(f"offsets of {name_of(left[0])}", attempt)
        return {partition: offsets[partition] for partition in partitions}

    def _offsets_of_first(
        self,
        partitions: list[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel,
        seconds: float,
    ) -> dict[TopicPartition, int]:
        """Return the offsets of the first partition and of all others with the same leader."""
        leader = self.leader(partitions[0], seconds)
        topic_class = ListOffsetsRequest.ListOffsetsTopic
        led = by_topic(
            partition for partition in partitions if self._leaders.get(partition, leader) == leader
        )
        request = ListOffsetsRequest(
            isolation_level=int(isolation),
            topics=[
                topic_class(
                    name=topic,
                    partitions=[
                        topic_class.ListOffsetsPartition(
                            partition_index=partition, timestamp=int(spec)
                        )
                        for partition in numbers
                    ],
                )
                for topic, numbers in led.items()
            ],
            timeout_ms=int(seconds * 1000),
            min_version=2,  # the first version with isolation levels
        )
        offsets: dict[TopicPartition, int] = {}
        for topic in self.send(request, leader, seconds).topics:
            for offset in topic.partitions:
                partition = TopicPartition(topic.name, offset.partition_index)
                if not offset.error_code:
                    offsets[partition] = offset.offset
                elif partition == partitions[0]:
                    check(offset.error_code)
        return offsets

    def leader(self, partition: TopicPartition, seconds: float) -> int:
        """Return the node id of the broker that leads a partition."""
        if partition not in self._leaders:
            self._leaders |= {
                TopicPartition(topic.name, entry.partition_index): entry.leader_id
                for topic in self._metadata([partition.topic], seconds).topics
                for entry in topic.partitions
                if entry.leader_id >= 0
            }
        if partition not in self._leaders:
            raise kafka_errors.LeaderNotAvailableError
        return self._leaders[partition]
