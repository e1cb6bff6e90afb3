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
"""Option with the group of sources made by `spark_eos._sink.reader`; Spark ignores it."""

_KAFKA: Final = {"kafka", "org.apache.spark.sql.kafka010.kafkasourceprovider"}
_ISOLATION: Final = "kafka.isolation.level"
_SERVERS: Final = "kafka.bootstrap.servers"
_PATTERN: Final = "subscribepattern"
_SPLITTING: Final = {
    "minpartitions": "minPartitions",
    "maxrecordsperpartition": "maxRecordsPerPartition",
}
_LEAVE: Final = (
    "To leave them, with what is unread in them, start a direct or mirrored query with an empty "
    "checkpoint_location and the same group_id, and a staged one, once, with "
    "fail_on_data_loss=False"
)
_LEFT_BY_NAME: Final = f"To read them on, name them in subscribe or assign. {_LEAVE}"
_LEFT_BY_PATTERN: Final = (
    "subscribePattern must match a topic's whole name, and chooses neither topic, "
    "dead_letters.topic nor progress_topic of the sink. To read them on, let the pattern match "
    f"them, or write to other topics. {_LEAVE} and subscribe= of the others' names in place of the "
    "pattern"
)
# No other options are read, since some are secrets.
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
    for one, other in itertools.combinations(sources, 2):
        if shared := _shared(one, other):
            raise UnsupportedPipelineError(
                f"the query reads {shared} more than once (as a union of two selections of one "
                "DataFrame does), so two tasks would hold rows of one source partition. Read "
                "each topic once, and make several rows of one record in one select: "
                "explode(array(struct(...), struct(...)))"
            )


def check_staged_sources(sources: Sequence[StreamSource]) -> None:
    """Refuse sources that lose records unnoticed, or show records that were aborted."""
    for source in sources:
        if source.format in _KAFKA:
            _check_records(source)


def check_read_for(group_id: str, sources: Iterable[StreamSource]) -> None:
    """Refuse what another group's sink has read: it begins at that group's offsets."""
    for source in sources:
        if (reader := source.options.get(READ_BY_US, group_id)) != group_id:
            raise UnsupportedPipelineError(
                f"the query reads what the sink of group {reader!r} has read, which begins at that "
                f"group's offsets, so group {group_id!r} would never write the records before "
                "them: read with sink.read of the sink that writes"
            )


def check_read_from(here: Callable[[str], bool], sources: Iterable[StreamSource]) -> None:
    """Refuse sources of a cluster that is not the one whose offsets are committed."""
    for source in sources:
        servers = source.options.get(_SERVERS, "")
        if not here(servers):
            raise UnsupportedPipelineError(
                f"the query reads from {servers!r}, which are no addresses of the cluster whose "
                "offsets are committed. Read with sink.read, or set 'kafka.bootstrap.servers' to "
                "addresses that brokers advertise to the sink; or, if another cluster is meant, "
                "name it as source_kafka, or let the batches be staged (delivery='staged')"
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
                f"source option {shown!r} can't be used: it splits source partitions over tasks; "
                "leave it out"
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
            f"source option {_ISOLATION!r} {given}, so aborted records would be written as "
            f"committed ones: read with sink.read, or set {_ISOLATION!r} to "
            "'read_committed'"
        )
    if _loses_records(source) and READ_BY_US not in options:
        raise UnsupportedPipelineError(
            "source option 'failOnDataLoss' is 'false', so deleted records would be skipped "
            "silently: leave it out, or read with sink.read"
        )


def only_topic(sources: Sequence[StreamSource]) -> str | None:
    """Return the topic that sources read; None if there are several, or a pattern chooses them."""
    if any(_PATTERN in source.options for source in sources):
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
    """Refuse a checkpoint with topics that no source reads any more."""
    read = topics_read(sources)
    of_kafka = [source for source in sources if source.format in _KAFKA]
    if not read.patterns and all(map(_loses_records, of_kafka)):
        # Spark goes on without them, and the names are the user's choice.
        return
    topics = log.topics()
    if left_out := topics - read.among(spark, topics):
        raise CheckpointError(
            f"the query of checkpoint_location {log.location!r} has read topics that it would not "
            f"read any more: {listed(sorted(left_out), 10)}. "
            + (_LEFT_BY_PATTERN if read.patterns else _LEFT_BY_NAME)
        )


def readers(
    sources: Sequence[StreamSource], spark: SparkSession, *, or_nobody: bool
) -> list[Callable[[set[str]], set[str]] | None]:
    """Tell for each source which topics it reads; None of one that is not Kafka.

    ``or_nobody``: whether it may also have read topics that no source reads any more.
    """
    every = topics_read(sources)

    def reads(source: StreamSource, topics: set[str]) -> set[str]:
        own = topics_read([source]).among(spark, topics)
        return own | (topics - every.among(spark, topics)) if or_nobody else own

    return [partial(reads, source) if source.format in _KAFKA else None for source in sources]


def check_losses_seen(
    sources: Sequence[StreamSource], selections: Iterable[Mapping[str, str]], servers: str
) -> None:
    """Refuse staged sources whose deleted records Spark would skip and nobody would miss."""
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
                "and no topic of the same name in another way"
            )


def _selected(selections: Iterable[Mapping[str, str]]) -> Iterator[StreamSource]:
    for selection in selections:
        yield StreamSource("kafka", {name.lower(): text for name, text in selection.items()})


def read_by_others(sources: Iterable[StreamSource]) -> SourceTopics:
    """Return the topics that sources read which are not of ``sink.read``."""
    return topics_read(source for source in sources if READ_BY_US not in source.options)


def _shared(source: StreamSource, other: StreamSource) -> str:
    """Return what two sources both read, or may both read; "" if they share nothing."""
    if _PATTERN in source.options or _PATTERN in other.options:
        return "what a subscribePattern matches"
    mine, theirs = _partitions(source.options), _partitions(other.options)
    for topic in sorted(mine.keys() & theirs.keys()):
        indexes, others = mine[topic], theirs[topic]
        if indexes is None or others is None or indexes & others:
            return f"topic {topic!r}"
    return ""


def _partitions(options: Mapping[str, str]) -> dict[str, set[int] | None]:
    """Topics and their assigned partitions; None for all partitions."""
    if "assign" in options:
        assigned = json.loads(options["assign"])
        return {topic: set(map(int, indexes)) for topic, indexes in assigned.items()}
    names = options.get("subscribe", "").split(",")
    return {name.strip(): None for name in names if name.strip()}
