"""How far a query has come in inputs of another cluster than its group's.

The group then has an offset of a progress topic for each source partition. The text that Kafka
stores with the offset tells which one, as JSON: ``{"spark-eos": 1, ..., "source": [id of the source
cluster, topic, topic id in hexadecimal digits, partition]}``. What is read here is that text, not
the code that writes it.
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kafka.protocol.metadata import MetadataRequest

from spark_eos.client.header_values import MAX_PARTITION, TOPIC_NAME
from spark_eos.client.strict_json import matched, strict_object, whole
from spark_eos.errors import VerificationError
from spark_eos.verify.cluster import Cluster
from spark_eos.verify.connections import Connections
from spark_eos.verify.group_offsets import GroupOffsets, Partition, Stored
from spark_eos.verify.input_offsets import InputOffsets
from spark_eos.verify.places import Places

_FORMAT: Final = "spark-eos"
_CLUSTER: Final = re.compile(r"[ -~]{0,255}")
_UUID: Final = re.compile(r"[0-9a-f]{32}")
# Of a cluster whose topics have no ids (KIP-516).
_NO_ID: Final = uuid.UUID(int=0)


class Source(NamedTuple):
    """The source partition that an offset stands for.

    Attributes:
        cluster: Id of the source cluster.
        topic: Name of the topic.
        topic_id: Id of the topic; 0 if its cluster has none.
        partition: Number of the partition.
    """

    cluster: str
    topic: str
    topic_id: uuid.UUID
    partition: int


def source_of(text: str) -> Source | None:
    """Returns the source partition that an offset's text names; None if it names none.

    Example:
        >>> text = '{"spark-eos":1,"source":["9dZ","orders","00000000000000000000000000000007",3]}'
        >>> source_of(text)
        Source(cluster='9dZ', topic='orders', \
topic_id=UUID('00000000-0000-0000-0000-000000000007'), partition=3)
        >>> source_of("an operator's")
    """
    try:
        # An offset that is set with confluent-kafka has a text that ends with a NUL.
        fields = strict_object(text.rstrip("\0"))
        if whole(fields[_FORMAT], 1) != 1:
            return None
        cluster, topic, topic_id, partition = fields["source"]
        return Source(
            matched(cluster, _CLUSTER),
            matched(topic, TOPIC_NAME),
            uuid.UUID(matched(topic_id, _UUID)),
            whole(partition, MAX_PARTITION),
        )
    except (ValueError, KeyError, TypeError):
        return None


class Identity(NamedTuple):
    """What tells a cluster and its topics from others of the same names.

    Attributes:
        cluster: The cluster's id.
        topics: Ids by topic.
    """

    cluster: str
    topics: Mapping[str, uuid.UUID]


def identity(connections: Connections, topics: Sequence[str]) -> Identity:
    """Asks a cluster for its id and for those of topics.

    Raises:
        DeadlineExceededError: No answer in time.
    """
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics],
        allow_auto_topic_creation=False,
    )
    answer = connections.send(request, connections.brokers()[0])
    ids = {topic.name: topic.topic_id or _NO_ID for topic in answer.topics}
    return Identity(answer.cluster_id or "", ids)


class MirroredOffsets:
    """Reads a group's offsets of a progress topic.

    Args:
        group: The group's offsets.
        places: The partitions; the inputs are those of the source cluster.
        target: The group's cluster.
        source: Connections to the source cluster.
    """

    def __init__(
        self, group: GroupOffsets, places: Places, target: Cluster, source: Connections
    ) -> None:
        self._group = group
        self._inputs = places.numbers(places.inputs)
        self._topics = sorted({topic for topic, _ in self._inputs})
        self._target = target
        self._source = source

    def read(self, *, stable: bool) -> InputOffsets:
        """Reads the offsets.

        Args:
            stable: Whether to wait until no open transaction is about to change one.

        Raises:
            DeadlineExceededError: A cluster does not answer in time.
            VerificationError: The offsets can't be read; or they are those of another cluster or
                topic, or nothing tells what one of them stands for.
        """
        stored = self._group.all()
        unstable: set[Partition] = set()
        if stable:
            more, unstable = self._group.committed(self._awaited(stored), stable=True)
            stored |= more
        return InputOffsets(
            self._by_place(stored),
            tuple(f"{topic}:{number}" for topic, number in sorted(unstable)),
        )

    def nothing(self) -> VerificationError:
        """The error of a group without an offset of any input."""
        return VerificationError(
            f"group {self._group.group_id!r} has no committed offset that stands for a partition "
            "of an input topic: there is nothing to judge; check --group-id, --input and whether "
            "you may describe the query's progress topic"
        )

    def _awaited(self, stored: Mapping[Partition, Stored]) -> set[Partition]:
        """The partitions whose offset may be about to tell of an input.

        Also those without an offset: the broker tells only if it is asked that they are about to
        get one. A group without any progress, in its first transaction, may have it anywhere.
        """
        sources = {partition: source_of(text) for partition, (_, text) in stored.items()}
        topics = {topic for (topic, _), source in sources.items() if source is not None}
        counts = self._target.partitions(sorted(topics)) if topics else self._target.all_topics()
        everything = {(topic, at) for topic, count in counts.items() for at in range(count)}
        # A progress partition keeps its source partition for good.
        others = {
            partition
            for partition, source in sources.items()
            if source is not None and source.topic not in self._topics
        }
        return everything - others

    def _by_place(self, stored: Mapping[Partition, Stored]) -> dict[int, int]:
        sources = {partition: source_of(text) for partition, (_, text) in stored.items()}
        progress = {topic for (topic, _), source in sources.items() if source is not None}
        read = identity(self._source, self._topics)
        told: dict[tuple[str, int], Partition] = {}
        found: dict[int, int] = {}
        for partition, source in sorted(sources.items()):
            if source is None:
                if partition[0] in progress:
                    raise self._untold(partition)
                continue
            self._check(partition, source, read)
            at = (source.topic, source.partition)
            if at in told:
                raise VerificationError(
                    f"{_name(told[at])} and {_name(partition)} both hold the progress of group "
                    f"{self._group.group_id!r} in {_name(at)}: which of them counts is not known"
                )
            told[at] = partition
            if at in self._inputs:
                found[self._inputs[at]] = stored[partition].offset
        return found

    def _untold(self, partition: Partition) -> VerificationError:
        return VerificationError(
            f"the offset of group {self._group.group_id!r} in {_name(partition)} does not tell "
            "which source partition it stands for: another tool has set it; a run of the query "
            "with its checkpoint mends it"
        )

    def _check(self, partition: Partition, source: Source, read: Identity) -> None:
        what = (
            f"{_name(partition)} holds the progress of group {self._group.group_id!r} in "
            f"{source.topic}:{source.partition} of"
        )
        if source.cluster != read.cluster:
            raise VerificationError(
                f"{what} cluster {source.cluster!r}, and --source-bootstrap-servers leads to "
                f"cluster {read.cluster!r}: give the cluster that the query reads"
            )
        topic_id = read.topics.get(source.topic, _NO_ID)
        if _NO_ID not in (source.topic_id, topic_id) and source.topic_id != topic_id:
            raise VerificationError(
                f"{what} topic id {source.topic_id}, and the topic that "
                f"--source-bootstrap-servers leads to has topic id {topic_id}: it was deleted and "
                "recreated, or it is another cluster's"
            )


def _name(partition: tuple[str, int]) -> str:
    topic, number = partition
    return f"{topic}:{number}"
