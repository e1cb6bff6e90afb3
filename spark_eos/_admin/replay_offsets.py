"""How far replays of a dead-letter topic have come, by their group's offsets."""

from collections.abc import Iterable
from contextlib import closing

from spark_eos._admin.dead_letter_topic import DeadLetterTopic
from spark_eos._admin.replay_progress import PartitionProgress
from spark_eos._kafka import cluster
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.offset_metadata import CommittedOffset
from spark_eos._kafka.offsets import group_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.acls import replay_group


def replay_offsets(
    letters: DeadLetterTopic, partitions: Iterable[int] | None = None, *, stable: bool = True
) -> dict[int, CommittedOffset]:
    """A topic's offsets, by partition; not by librdkafka, which hides why it can't tell.

    Without partitions, those of all. ``stable`` waits for a replay's open transaction. Brokers
    forget the offsets some time after the last replay.

    Raises:
        AuthorizationError: The group may not be described.
    """
    deadline = Deadline(letters.timeout, "--timeout")
    with closing(Connections(letters.settings)) as connections:
        found = cluster.topics(connections, [letters.name], deadline)
        ids = {name: one.topic_id for name, one in found.items()}
        if partitions is None:
            partitions = range(found[letters.name].partitions) if found else ()
        own = [TopicPartition(letters.name, partition) for partition in partitions]
        group = replay_group(letters.name)
        offsets = group_offsets(connections, group, own, ids, deadline, stable=stable)
    return {partition: committed for (_, partition), committed in offsets.items()}


def replayed(letters: DeadLetterTopic) -> dict[int, PartitionProgress]:
    """How far each partition was replayed, as far as it is known; raises as `replay_offsets`."""
    found = replay_offsets(letters, stable=False)
    return {partition: PartitionProgress.of(one, 0) for partition, one in found.items()}
