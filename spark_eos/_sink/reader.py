"""Reads Spark's Kafka source, starting at a group's committed offsets."""

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos._checks import preflight
from spark_eos._checks.start import Start
from spark_eos._client.printable import listed
from spark_eos._delivery.renewal import renew_hourly, renew_unattended
from spark_eos._kafka import cluster
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.offset_metadata import KnownPartitions, mirrored_positions
from spark_eos._kafka.offsets import all_group_offsets, group_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._pyspark_internals import unlogged
from spark_eos._spark.dead_letter_columns import with_letter_fields
from spark_eos._spark.session import check_session
from spark_eos._spark.source_options import check_source_options
from spark_eos._spark.stream_sources import READ_BY_US
from spark_eos._spark.topic_patterns import matching, whole_names
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.acls import Operation
from spark_eos.errors import ConfigurationError, TopicNotFoundError, warn

_PATTERN: Final = "subscribePattern"
_SPECIAL: Final = {"earliest": -2, "latest": -1}

logger = logging.getLogger(__name__)


class Selection(NamedTuple):
    """A selection of topics as passed to Spark, with the topics and partitions that it reads."""

    options: dict[str, str]
    topics: dict[str, cluster.TopicInfo]
    partitions: set[TopicPartition]


def _selection(
    spark: SparkSession,
    start: Start,
    settings: WriterSettings,
    given: Mapping[str, str],
    progress_topic: str,
) -> Selection:
    """Return the selection without the topics that the query itself writes to."""
    never = _never_sources(start, settings, progress_topic)
    for name in sorted(named_topics(given) & never.keys()):
        raise preflight.feeds_itself(never[name], name)
    if (pattern := given.get(_PATTERN)) is None:
        partitions = source_partitions(spark, start.source, given, start.deadline())
        return Selection(dict(given), *partitions)
    topics = cluster.topics(start.source, None, start.deadline())
    whole = whole_names(spark, pattern, topics, never)
    if whole.left_out:
        warn(
            logger,
            "EOS71",
            "group %s: subscribePattern %r must match a topic's whole name, so these topics are "
            "not read, although Spark's own Kafka source would read them: %s. To read them, let "
            "the pattern match them: '.*' stands for anything",
            settings.group_id,
            pattern,
            listed(sorted(whole.left_out), 10),
        )
    read = _matched(start.source, pattern, topics, whole.read)
    return Selection({_PATTERN: whole.pattern}, read, _all_partitions(read))


def _matched(
    connections: Connections,
    pattern: str,
    topics: Mapping[str, cluster.TopicInfo],
    names: Iterable[str],
) -> dict[str, cluster.TopicInfo]:
    existing = {name: topics[name] for name in names}
    if not existing:
        raise TopicNotFoundError(
            f"no topic that {connections.principal.who} may describe matches {_PATTERN} {pattern!r}"
        )
    return existing


def _never_sources(start: Start, settings: WriterSettings, progress_topic: str) -> dict[str, str]:
    """Return the topics that are never sources, with the options that name them."""
    source = settings.source_client
    if source is not None and not cluster.same_cluster(
        start.target, source.bootstrap_servers, start.deadline()
    ):
        return {}
    written = {progress_topic: "progress_topic"}
    if settings.topic is not None:
        written[settings.topic] = "topic"
    if settings.dead_letters is not None:
        written[settings.dead_letters.topic] = "dead_letters.topic"
    return written


def source_partitions(
    spark: SparkSession,
    connections: Connections,
    selection: Mapping[str, str],
    deadline: Deadline,
) -> tuple[dict[str, cluster.TopicInfo], set[TopicPartition]]:
    """Return the topics and partitions that a selection reads, in the form passed to Spark."""
    names, assigned = _named(selection)
    if names is None:
        topics, pattern = cluster.topics(connections, None, deadline), selection[_PATTERN]
        matched = _matched(connections, pattern, topics, matching(spark, pattern, topics))
        return matched, _all_partitions(matched)
    matched = _existing(connections, names, deadline)
    for topic, partition in sorted(assigned - _all_partitions(matched)):
        raise TopicNotFoundError(f"source topic {topic!r} has no partition {partition}")
    return matched, assigned or _all_partitions(matched)


def named_topics(selection: Mapping[str, str]) -> set[str]:
    """Return the topics that a selection names; empty for a pattern."""
    return _named(selection)[0] or set()


def source_topics(
    spark: SparkSession, start: Start, selections: Iterable[Mapping[str, str]]
) -> set[str]:
    """Return the existing topics that selections read in the target's cluster."""
    names: set[str] = set()
    for selection in selections:

        def look(selection: Mapping[str, str] = selection) -> set[str]:
            topics, _ = source_partitions(spark, start.target, selection, start.deadline())
            return {*topics}

        names |= start.cached(_cache_key(selection), look)
    return names


def _cache_key(selection: Mapping[str, str]) -> tuple[object, ...]:
    return ("source topics", *selection.items())


def _named(selection: Mapping[str, str]) -> tuple[set[str] | None, set[TopicPartition]]:
    """Return the topics, or None for a pattern, and the partitions, if they are assigned."""
    if len(selection) != 1:
        raise ConfigurationError("pass exactly one of subscribe, subscribePattern and assign")
    ((kind, text),) = selection.items()
    if not isinstance(text, str):
        raise ConfigurationError(f"{kind} must be a string, not {text!r}")
    if kind == _PATTERN:
        return None, set()
    if kind == "subscribe":
        return {name.strip() for name in text.split(",") if name.strip()}, set()
    try:
        assigned = {
            TopicPartition(topic, int(index))
            for topic, indexes in json.loads(text).items()
            for index in indexes
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"assign is {text!r}; it must be JSON such as '{{\"orders\": [0, 1]}}'"
        ) from error
    return {topic for topic, _ in assigned}, assigned


def _existing(
    connections: Connections, names: set[str], deadline: Deadline
) -> dict[str, cluster.TopicInfo]:
    existing = cluster.topics(connections, names, deadline, Operation.READ)
    missing = sorted(names - existing.keys())
    if missing or not names:
        raise TopicNotFoundError(f"source topic {', '.join(missing) or '(none)'} does not exist")
    return existing


def _all_partitions(topics: Mapping[str, cluster.TopicInfo]) -> set[TopicPartition]:
    return {
        TopicPartition(name, index)
        for name, topic in topics.items()
        for index in range(topic.partitions)
    }


def starting_positions(
    connections: Connections,
    group_id: str,
    selection: Selection,
    starting_offsets: str,
    deadline: Deadline,
    target: Connections | None = None,
) -> dict[str, dict[str, int]]:
    """Return Spark's ``startingOffsets``: committed offsets, or a new group's starting_offsets."""
    partitions = selection.partitions
    ids = {name: topic.topic_id for name, topic in selection.topics.items()}
    # Don't wait for pending offsets: only the next run ends a killed run's transactions. At worst,
    # Spark reads from further back, and the sink skips rows that are already written.
    if target is not None:
        # The run checks at its start whether the offsets belong to this cluster.
        committed = mirrored_positions(all_group_offsets(target, group_id, deadline))
        begun = bool(committed)
    else:
        now = group_offsets(connections, group_id, partitions, ids, deadline, stable=False)
        committed = {partition: offset.offset for partition, offset in now.items()}
        begun = False
        if starting_offsets != "earliest" and partitions - committed.keys():
            # Offsets that were set manually before the first start name no query.
            offsets = all_group_offsets(connections, group_id, deadline)
            begun = bool(KnownPartitions.of(offsets).partitions)
    # If a query of the group has begun before, a partition without an offset was added while the
    # query was stopped. Read the partition from its beginning, as Spark does for a query with a
    # checkpoint.
    start = _SPECIAL["earliest" if begun else starting_offsets]
    if committed and start == _SPECIAL["latest"]:
        _warn_of_skipped(group_id, partitions - committed.keys())
    positions: dict[str, dict[str, int]] = {}
    for partition in sorted(partitions):
        own = positions.setdefault(partition.topic, {})
        own[str(partition.partition)] = committed.get(partition, start)
    return positions


def _warn_of_skipped(group_id: str, partitions: set[TopicPartition]) -> None:
    if not partitions:
        return
    warn(
        logger,
        "EOS63",
        "group %s: all its offsets were set by other clients, so the group counts as new. Without "
        "a checkpoint, the query reads only new records of %s, because starting_offsets is "
        "'latest'. If a query of the group has run before, stop this query, and set the offsets "
        "of these partitions too, or use starting_offsets='earliest'",
        group_id,
        listed(sorted(partitions), 10),
    )


def read_from_offsets(
    spark: SparkSession,
    start: Start,
    settings: WriterSettings,
    selection: Mapping[str, str],
    *,
    progress_topic: str,
    starting_offsets: str,
    include_headers: bool,
    options: Mapping[str, object] | None,
) -> tuple[DataFrame, Selection]:
    """Return the stream of a selection, starting at the group's offsets, and its `Selection`."""
    read = settings.source_client or settings.client
    own = named_topics(selection) if settings.source_client is None else set()
    further = check_source_options(starting_offsets, options or {}, read)
    check_session(spark)
    group_id, target = settings.group_id, start.target
    preflight.check_brokers(start, settings, start.deadline())
    # Check before any lookup, so that the error names every missing ACL.
    preflight.check_authorization(start, settings, own, start.deadline())
    selected = _selection(spark, start, settings, selection, progress_topic)
    starting = starting_positions(
        start.source,
        group_id,
        selected,
        starting_offsets,
        deadline := start.deadline(),
        target=None if settings.source_client is None else target,
    )
    start.remember(_cache_key(selected.options), {*starting})
    # Without records Spark runs no batch, and nothing else would renew the offsets.
    renew_unattended(target, group_id, deadline)
    renew_hourly(settings)
    with unlogged():
        reader = spark.readStream.format("kafka").options(
            **{
                **read.for_spark_source(sum(map(len, starting.values()))),
                **further,
                **selected.options,
                "startingOffsets": json.dumps(starting),
                "failOnDataLoss": str(settings.fail_on_data_loss).lower(),
                READ_BY_US: group_id,
            }
        )
        carry_records = settings.dead_letters is not None
        if include_headers or carry_records:
            reader = reader.option("includeHeaders", "true")
        frame = reader.load()
    if carry_records:
        frame = with_letter_fields(frame, include_headers=include_headers)
    else:
        frame = frame.withColumn("source", F.struct("topic", "partition", "offset"))
    return frame, selected
