"""The topics of a cluster, at a glance."""

from dataclasses import dataclass

from spark_eos._kafka.cluster import metadata_request
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.list_offsets import end_offsets, start_offsets


@dataclass(frozen=True)
class TopicSummary:
    """A topic.

    Attributes:
        name: The topic's name.
        partitions: Number of its partitions.
        replicas: Copies of the partition that has the fewest.
        offsets: Offsets from its beginnings to where readers of committed records get; None if a
            partition has no leader. Each transaction takes one for its marker, so there may be
            fewer records.
    """

    name: str
    partitions: int
    replicas: int
    offsets: int | None


def topic_summaries(connections: Connections, deadline: Deadline) -> list[TopicSummary]:
    """All topics that the client may describe, but Kafka's internal ones, by name."""
    found = connections.send(metadata_request(None), deadline).topics
    shown = {one.name: one.partitions for one in found if not one.is_internal and one.partitions}
    starts = start_offsets(connections, shown, deadline)
    lengths = dict.fromkeys(shown, 0)
    unknown: set[str] = set()
    for partition, end in end_offsets(connections, shown, deadline).items():
        start = starts.get(partition)
        if end is None or start is None:
            unknown.add(partition.topic)
        else:
            lengths[partition.topic] += end.last_stable - start
    return [
        TopicSummary(
            name,
            len(partitions),
            min(len(partition.replica_nodes) for partition in partitions),
            None if name in unknown else lengths[name],
        )
        for name, partitions in sorted(shown.items())
    ]
