"""The line printed at a start: the delivery, where the query begins, and its lag."""

import logging
from collections.abc import Collection
from typing import Final

from pyspark.sql import SparkSession

from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._checks.start import Start
from spark_eos._client.printable import counted
from spark_eos._delivery.base import Delivery, SinkQuery
from spark_eos._delivery.choice import delivery_of_run
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.list_offsets import end_offsets, start_offsets
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.offsets import all_group_offsets
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._sink.reader import source_partitions
from spark_eos.observability.speaking import say

logger = logging.getLogger(__name__)

# Seconds to wait for an answer; the line is not worth a longer wait.
_SECONDS: Final = 5.0


def say_start(query: SinkQuery, spark: SparkSession, start: Start, log: OffsetLog | None) -> None:
    """Print the line, as far as its facts are known; ``log`` is None on Spark Connect."""
    delivery, why = query.delivery, query.why
    where: list[str] = []
    try:
        if log is None and query.fallback is not None:
            why += f", unless its checkpoint was begun with {query.fallback.name}"
        elif log is not None:
            marker = log.markers.read()
            # The first batch may still change the delivery.
            delivery, _ = delivery_of_run(query, marker, log.next_batch(), start)
            if delivery is not query.delivery:
                why = "its checkpoint was begun with it"
        begun = log is not None and log.begun is not None
        where = _beginning(query, delivery, spark, start, begun=begun)
    except Exception as error:
        logger.debug("the line at the start is incomplete", exc_info=error)
    group = query.settings.group_id
    text = "; ".join([f"group {group}: delivery={delivery.name}, since {why}", *where])
    say(text, event="start", group_id=group, delivery=delivery.name)


def _beginning(
    query: SinkQuery, delivery: type[Delivery], spark: SparkSession, start: Start, *, begun: bool
) -> list[str]:
    """Return where a query starts, and its lag; ``begun``: whether its checkpoint has a batch."""
    deadline = Deadline(_SECONDS, "connect_timeout_ms")
    offsets = all_group_offsets(start.target, query.settings.group_id, deadline, positions=True)
    known = KnownPartitions.of(offsets)
    reached = delivery.positions(offsets)
    read: set[TopicPartition] = set()
    for selection in query.selections:
        read |= source_partitions(spark, start.source, selection, deadline)[1]
    if read:
        reached = {p: offset for p, offset in reached.items() if p in read}
    latest = False
    if reached or known.staged or begun:
        where = f"continues from {delivery.continues_from if reached else 'its checkpoint'}"
        if not reached or not read:
            return [where]
    elif not read:
        return ["begins where its source does"]
    elif known.partitions:
        # As in `starting_positions`: a partition without an offset was added later.
        where = "begins at earliest, since the group has offsets of other topics"
    else:
        given = query.starting_offsets
        where = f"begins at {' and '.join(sorted(given))} (starting_offsets)"
        latest = given == {"latest"}
    waiting = _waiting(start.source, read, reached, deadline, latest=latest)
    if waiting is None:
        return [where]
    if not waiting:
        return [where, "no records wait"]
    return [where, f"up to {counted(waiting, 'record')} wait{'s' if waiting == 1 else ''}"]


def _waiting(
    source: Connections,
    read: Collection[TopicPartition],
    reached: Positions,
    deadline: Deadline,
    *,
    latest: bool,
) -> int | None:
    ends = end_offsets(source, {topic for topic, _ in read}, deadline)
    new = {p for p in read if p not in reached}
    if new and not latest:
        first = start_offsets(source, {topic for topic, _ in new}, deadline)
        reached = {**{p: first[p] for p in new if p in first}, **reached}
    total = 0
    for partition in read:
        if partition in new and latest:
            continue
        end = ends.get(partition)
        if end is None or partition not in reached:
            return None
        total += max(0, end.last_stable - reached[partition])
    return total
