"""A flow whose source is in a different cluster from its target and group."""

import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from spark_eos._client.settings import ClientSettings
from spark_eos._delivery.mirrored import MirroredDelivery
from spark_eos._kafka import cluster
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.offset_metadata import CommittedOffset, mirrored_positions
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.options import ProgressTopic
from spark_eos.testing import EmbeddedKafka
from support.flow import Flow
from support.members import deadline
from support.runs import Checkpoint, Query, Runs, running


@dataclass
class MirroredFlow(Flow):
    """Like `Flow`; ``broker`` has the target and the group, ``other`` the source."""

    other: EmbeddedKafka = field(kw_only=True)
    source_through: str | None = None  # a proxy's address

    def __post_init__(self) -> None:
        self.broker.create_topic(self.target, self.partitions)
        self.other.create_topic(self.source, self.partitions)

    @property
    def source_broker(self) -> EmbeddedKafka:
        return self.other

    @property
    def source_servers(self) -> str:
        return self.source_through or self.other.bootstrap_servers

    @property
    def source_kafka(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.source_servers}

    @cached_property
    def identity(self) -> tuple[str, str]:
        """Ids of the source's cluster and of the source topic, as in offsets' texts."""
        with closing(Connections(ClientSettings(self.source_kafka))) as connections:
            topic = cluster.topics(connections, [self.source], deadline())[self.source]
            return cluster.cluster_id(connections, deadline()), topic.topic_id.hex

    def group_offsets(self, offsets: Mapping[int, int]) -> dict[TopicPartition, tuple[int, str]]:
        """See `Flow`; the last progress partition represents the first source partition."""
        found = {}
        for partition, offset in offsets.items():
            source = [*self.identity[:1], self.source, *self.identity[1:], partition]
            text = {"spark-eos": 2, "partitions": "0-1", "topics": "", "source": source}
            progress = TopicPartition(self.progress, self.partitions - 1 - partition)
            found[progress] = (offset, json.dumps(text))
        return found

    @property
    def progress(self) -> str:
        return f"progress-{self.name}"

    def options(self) -> dict[str, Any]:
        more = {"source_kafka": self.source_kafka, "progress_topic": self.progress}
        return {**super().options(), **more}

    def recreate(self, topic: str, partitions: int | None = None) -> None:
        """See `Flow`; the source is in its own cluster."""
        broker = self.other if topic == self.source else self.broker
        broker.delete_topic(topic)
        broker.create_topic(topic, partitions or self.partitions)

    def progress_offsets(self) -> dict[int, CommittedOffset]:
        """The group's offsets of the progress topic, by partition."""
        return {
            n: one for (topic, n), one in self.group_commits().items() if topic == self.progress
        }

    def committed(self, *, stable: bool = True) -> dict[int, int]:
        """The group's progress by source partition, from any progress topic."""
        found = mirrored_positions(self.group_commits(stable=stable))
        return {partition: n for (topic, partition), n in found.items() if topic == self.source}


@contextmanager
def mirrored_run(
    flow: MirroredFlow,
    *,
    checkpoint: Checkpoint | None = None,
    partitions: int = 2,
    **options: Any,
) -> Iterator[Runs]:
    """A run that ends with the block; ``partitions`` is for a progress topic to create."""
    source = ClientSettings(flow.source_kafka)
    options = {"source_client": source, **options}
    options["progress_topic"] = ProgressTopic(flow.progress, partitions)
    with running(flow, checkpoint=checkpoint, delivery=MirroredDelivery, **options) as runs:
        yield runs


def mirrored_query(flow: MirroredFlow) -> Query:
    """A query whose source is in another cluster."""
    return Query(flow, functools.partial(mirrored_run, flow), flow.progress)
