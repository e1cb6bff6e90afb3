"""Finds a streaming query's sources in its plan, and checks them."""

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._client.printable import listed
from spark_eos._pyspark_internals import Execution, StreamSource, stream_relations
from spark_eos._spark.source_options import NUMERIC, check_numbers
from spark_eos._spark.topic_patterns import SourceTopics
from spark_eos.errors import CheckpointError, UnsupportedPipelineError

READ_BY_US: Final = "sparkeosread"
"""The option that names the group of the sink that made a source; Spark ignores it."""

_KAFKA: Final = {"kafka", "org.apache.spark.sql.kafka010.kafkasourceprovider"}
_ISOLATION: Final = "kafka.isolation.level"
_SERVERS: Final = "kafka.bootstrap.servers"
_PATTERN: Final = "subscribepattern"
_SPLITTING: Final = {
    "minpartitions": "minPartitions",
    "maxrecordsperpartition": "maxRecordsPerPartition",
}
_LEAVE: Final = (
    "To stop reading them, and skip their unread records, start a direct or mirrored query with "
    "an empty checkpoint_location and the same group_id, or a staged query, once, with "
    "fail_on_data_loss=False"
)
_LEFT_BY_NAME: Final = f"To keep reading them, name them in subscribe or assign. {_LEAVE}"
_LEFT_BY_PATTERN: Final = (
    "subscribePattern must match a topic's whole name, and never selects the sink's topic, "
    "dead_letters.topic or progress_topic. To keep reading them, let the pattern match them, or "
    f"write to other topics. {_LEAVE} and the names of the other topics in subscribe= instead of "
    "the pattern"
)
# No other options are read, because some hold secrets.
_LOOKED_AT: Final = (
    READ_BY_US,
    _ISOLATION,
    _SERVERS,
    *_SPLITTING,
    "failondataloss",
    "subscribe",
    _PATTERN,
    "assign",
    *NUMERIC,
)


def sources_of(frame: DataFrame) -> list[StreamSource]:
    return stream_relations(frame, _LOOKED_AT)


def sources_of_query(query: Execution) -> list[StreamSource]:
    return query.sources(_LOOKED_AT)


def check_sources(sources: Sequence[StreamSource]) -> None:
    """Refuse sources whose records can't be written exactly once."""
    if not sources:
        raise UnsupportedPipelineError(
            "the query's source can't be checked: read with sink.read, and on Spark Connect "
            "pass the DataFrame on as it is, not through a view or SQL"
        )
    for source in sources:
        _check_source(source)
    for source, other in itertools.combinations(sources, 2):
        if shared := _shared(source, other):
            raise UnsupportedPipelineError(
                f"the query reads {shared} more than once (as a union of two selections of one "
                "DataFrame does), so two tasks would hold rows of one source partition. Read "
                "each topic once; to make several rows from one record, use one select: "
                "explode(array(struct(...), struct(...)))"
            )


def check_staged_sources(sources: Sequence[StreamSource]) -> None:
    """Refuse sources that lose records unnoticed or return aborted records."""
    for source in sources:
        if source.format in _KAFKA:
            _check_records(source)


def check_read_for(
    group_id: str, sources: Iterable[StreamSource], *, fail_on_data_loss: bool
) -> None:
    """Refuse sources made by a sink with another group or another ``fail_on_data_loss``."""
    for source in sources:
        # Another group's sink begins at that group's offsets.
        if (reader := source.options.get(READ_BY_US, group_id)) != group_id:
            raise UnsupportedPipelineError(
                f"the query reads with the sink of group {reader!r}, which begins at that group's "
                f"offsets, so group {group_id!r} would never write the records before them: use "
                "sink.read of the sink that writes"
            )
        if READ_BY_US in source.options and _loses_records(source) is fail_on_data_loss:
            then = "be skipped silently" if fail_on_data_loss else "end the query"
            raise UnsupportedPipelineError(
                f"the query reads with a sink that has fail_on_data_loss={not fail_on_data_loss}, "
                f"and this sink has {fail_on_data_loss}, so deleted records would {then}: use "
                "sink.read of the sink that writes"
            )


def check_read_from(here: Callable[[str], bool], sources: Iterable[StreamSource]) -> None:
    """Refuse sources that read from a cluster other than the one whose offsets are committed."""
    for source in sources:
        servers = source.options.get(_SERVERS, "")
        if not here(servers):
            raise UnsupportedPipelineError(
                f"the query reads from {servers!r}, which are not addresses of the cluster whose "
                "offsets are committed. Read with sink.read, or set 'kafka.bootstrap.servers' to "
                "addresses that brokers advertise to the sink. If another cluster is meant, "
                "name it as source_kafka, or stage the batches (delivery='staged')"
            )


def _check_source(source: StreamSource) -> None:
    options = source.options
    if source.format not in _KAFKA:
        raise UnsupportedPipelineError(
            f"the query reads from {source.format!r}: exactly-once commits Kafka offsets, so all "
            "its sources must be Kafka, read with sink.read"
        )
    for name, shown in _SPLITTING.items():
        if name in options:
            raise UnsupportedPipelineError(
                f"source option {shown!r} can't be used: it splits source partitions across "
                "tasks; leave it out"
            )
    _check_records(source)


def _loses_records(source: StreamSource) -> bool:
    return source.options.get("failondataloss", "true").lower() == "false"


def _check_records(source: StreamSource) -> None:
    options = source.options
    check_numbers(options)
    if (level := options.get(_ISOLATION)) != "read_committed":
        given = "is missing" if level is None else f"is {level!r}"
        raise UnsupportedPipelineError(
            f"source option {_ISOLATION!r} {given}, so aborted records would be written as if "
            f"they were committed: read with sink.read, or set {_ISOLATION!r} to "
            "'read_committed'"
        )
    if _loses_records(source) and READ_BY_US not in options:
        raise UnsupportedPipelineError(
            "source option 'failOnDataLoss' is 'false', so deleted records would be skipped "
            "silently: leave it out, or read with sink.read"
        )


def only_topic(sources: Sequence[StreamSource]) -> str | None:
    """Return the only topic that sources can read; None if they may read several."""
    # A batch that Spark repeats may have topics that were left out since: see `check_still_read`.
    if any(_PATTERN in source.options or _loses_records(source) for source in sources):
        return None
    topics = {topic for source in sources for topic in _partitions(source.options)}
    return topics.pop() if len(topics) == 1 else None


def topics_read(
    sources: Iterable[StreamSource], here: Callable[[str], bool] = lambda _: True
) -> SourceTopics:
    """Return the topics that sources read in the target's cluster."""
    topics = SourceTopics()
    for source in sources:
        if source.format in _KAFKA and here(source.options.get(_SERVERS, "")):
            pattern = source.options.get(_PATTERN)
            patterns = frozenset() if pattern is None else frozenset({pattern})
            topics |= SourceTopics(frozenset(_partitions(source.options)), patterns)
    return topics


def check_still_read(
    sources: Collection[StreamSource], spark: SparkSession, log: OffsetLog
) -> None:
    """Refuse a checkpoint with topics or partitions that no source reads any more."""
    read = topics_read(sources)
    kafka_sources = [source for source in sources if source.format in _KAFKA]
    if not read.patterns and all(map(_loses_records, kafka_sources)):
        # Spark continues without the missing topics, and the user left them out by name.
        return
    numbers = {
        str(n)
        for n, source in enumerate(sources)
        if source.format not in _KAFKA or (not read.patterns and _loses_records(source))
    }
    partitions = log.partitions(numbers)
    topics = {topic for topic, _ in partitions}
    what, left_out = "topics", topics - read.among(spark, topics)
    if not left_out and not read.patterns:
        what = "partitions"
        left_out = {str(p) for p in partitions if not any(_reads(s, *p) for s in kafka_sources)}
    if left_out:
        raise CheckpointError(
            f"the query of checkpoint_location {log.location!r} has read {what} that it would no "
            f"longer read: {listed(sorted(left_out), 10)}. "
            + (_LEFT_BY_PATTERN if read.patterns else _LEFT_BY_NAME)
        )


def _reads(source: StreamSource, topic: str, partition: int) -> bool:
    """Return True if a source without a pattern reads a partition."""
    indexes = _partitions(source.options).get(topic, set())
    return indexes is None or partition in indexes


def readers(
    sources: Sequence[StreamSource], spark: SparkSession, *, include_dropped_topics: bool
) -> list[Callable[[set[str]], set[str]] | None]:
    """Return, for each source, a function that selects the topics it reads; None if not Kafka.

    With ``include_dropped_topics``, a source may have read topics that no source reads any more.
    """
    every = topics_read(sources)

    def reads(source: StreamSource, topics: set[str]) -> set[str]:
        own = topics_read([source]).among(spark, topics)
        return own | (topics - every.among(spark, topics)) if include_dropped_topics else own

    return [partial(reads, source) if source.format in _KAFKA else None for source in sources]


def check_losses_seen(
    sources: Sequence[StreamSource], selections: Iterable[Mapping[str, str]], servers: str
) -> None:
    """Refuse staged sources whose deleted records Spark would skip unnoticed."""
    ours = topics_read(_selected(selections))
    others = [
        source for source in sources if source.format in _KAFKA and READ_BY_US not in source.options
    ]
    for source in sources:
        if not _loses_records(source):
            continue
        mine = topics_read([source])
        if (
            source.options.get(_SERVERS) != servers
            or mine.names - ours.names
            or mine.patterns - ours.patterns
            or any(_shared(source, other) for other in others)
        ):
            raise UnsupportedPipelineError(
                "deleted records would be skipped silently: with fail_on_data_loss=False a query "
                "whose batches are staged must read its topics with sink.read of its own sink, "
                "and must not read a topic of the same name in any other way"
            )


def _selected(selections: Iterable[Mapping[str, str]]) -> Iterator[StreamSource]:
    for selection in selections:
        yield StreamSource("kafka", {name.lower(): text for name, text in selection.items()})


def read_by_others(sources: Iterable[StreamSource]) -> SourceTopics:
    """Return the topics of sources that ``sink.read`` did not make."""
    return topics_read(source for source in sources if READ_BY_US not in source.options)


def not_only_ours(
    sources: Sequence[StreamSource], spark: SparkSession, topics: Collection[str]
) -> set[str]:
    """Return the topics that ``sink.read`` does not read, or not alone.

    They include names in another source's offsets, which may look like Kafka's.
    """
    ours = topics_read(source for source in sources if READ_BY_US in source.options)
    others = read_by_others(sources)
    return {*topics} - ours.among(spark, topics) | others.among(spark, topics)


def _shared(source: StreamSource, other: StreamSource) -> str:
    """Return a name for what both sources read, or may read; "" if they share nothing."""
    if _PATTERN in source.options or _PATTERN in other.options:
        return "what a subscribePattern matches"
    mine, theirs = _partitions(source.options), _partitions(other.options)
    for topic in sorted(mine.keys() & theirs.keys()):
        indexes, others = mine[topic], theirs[topic]
        if indexes is None or others is None or indexes & others:
            return f"topic {topic!r}"
    return ""


def _partitions(options: Mapping[str, str]) -> dict[str, set[int] | None]:
    """Return topics with their assigned partitions; None for all partitions."""
    if "assign" in options:
        assigned = json.loads(options["assign"])
        return {topic: set(map(int, indexes)) for topic, indexes in assigned.items()}
    names = options.get("subscribe", "").split(",")
    return {name.strip(): None for name in names if name.strip()}
