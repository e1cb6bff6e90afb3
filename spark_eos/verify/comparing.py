"""The comparison of outputs with what the user expects, in numbered steps."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final

from confluent_kafka import KafkaException

from spark_eos.client.checks import check_positive, check_text
from spark_eos.client.settings import ClientSettings
from spark_eos.errors import ConfigurationError, VerificationError
from spark_eos.verify.cluster import Cluster, Settled, open_transactions, settle
from spark_eos.verify.comparison import Comparison
from spark_eos.verify.connections import Connections
from spark_eos.verify.contrasting import Gathered, contrast
from spark_eos.verify.expected import Row, Rows, TopicRows, shown
from spark_eos.verify.group_offsets import GroupOffsets
from spark_eos.verify.parquet_rows import ParquetRows
from spark_eos.verify.places import Places
from spark_eos.verify.reading import Reader, refused
from spark_eos.verify.tally import EXPECTED, VISIBLE, Tally, TallyRow, digest
from spark_eos.verify.watching import Watch, meter

_TOPIC: Final = "topic:"


def compare(
    *,
    kafka: Any,
    outputs: Sequence[str],
    expect: str | os.PathLike[str],
    key: bool = False,
    group_id: str | None = None,
    prefix: str | None = None,
    timeout: float = 30.0,
    examples: int = 5,
    watch: Watch | None = None,
) -> Comparison:
    """Compares what read_committed consumers see in topics with what the user expects there.

    For queries whose outputs have no single source record, such as aggregations and joins. What
    is expected comes from a plain batch query over all input. Rows are compared as multisets of
    key and value; by topic too if the expectation has the column. Outputs must not be compacted,
    unless they are compared by key.

    Args:
        kafka: Client settings by their librdkafka names; ``bootstrap.servers`` is required.
        outputs: Output topics.
        expect: What the outputs should hold: ``topic:NAME`` for a topic of the same cluster; else
            a Parquet file or directory, as a path or as a URI of a file system that pyarrow
            knows, with a column ``value`` and optionally ``key`` and ``topic``, binary or string.
            Keys are compared only if there is a column of keys.
        key: Whether to compare only the last value of each key, which is what consumers keep of
            output in update or complete mode. A null value is as good as no value.
        group_id: The query's consumer group: also wait for what open transactions are about to
            change in its offsets, and report what stays open.
        prefix: Also report open transactions of transactional ids that begin with this.
        timeout: Seconds to wait for open transactions to end, and for each answer.
        examples: Maximum number of examples of each difference.
        watch: Called often with the current step, how much of it is done and how much there is.

    Returns:
        The comparison; see `Comparison.verdict`.

    Raises:
        ConfigurationError: An argument can't be used as given, or the expectation's files or
            columns can't; raised before anything is read.
        TopicNotFoundError: A topic does not exist.
        DeadlineExceededError: The cluster does not answer in time.
        VerificationError: The topics or files can't be read, or expected rows lack a key or topic.

    Example:
        ::

            spark.read.table("orders").groupBy("customer").count().selectExpr(
                "customer AS key", "CAST(count AS STRING) AS value"
            ).write.parquet("/tmp/expected")
            comparison = compare(
                kafka={"bootstrap.servers": "localhost:9092"},
                outputs=["orders-per-customer"],
                expect="/tmp/expected",
                key=True,
            )
            assert comparison.verdict is Verdict.SOUND, comparison.anomalies
    """
    settings = ClientSettings(kafka)
    _check(outputs, group_id, timeout)
    where = os.fspath(expect)
    topic = where.removeprefix(_TOPIC) if where.startswith(_TOPIC) else None
    files = ParquetRows(where) if topic is None else None
    if topic is not None:
        check_text(f"the topic of --expect {where!r}", topic)
        if topic in outputs:
            raise ConfigurationError(f"topic {topic!r} is both --expect and --output")
    if key and files is not None and not files.has_key:
        raise ConfigurationError(f"--key needs a column 'key' in --expect {where!r}")
    try:
        with ExitStack() as stack:
            tally = stack.enter_context(Tally())
            # First, because librdkafka is slow to report that a listener refuses it.
            connections = stack.enter_context(closing(Connections(settings, timeout)))
            cluster = Cluster(settings, timeout)
            places = Places(
                {} if topic is None else cluster.partitions([topic]), cluster.partitions(outputs)
            )
            work = _Comparing(
                settings, places, cluster, connections, tally, key=key, timeout=timeout, watch=watch
            )
            gathered = work.gather(files, frozenset(outputs), group_id, prefix)
            return contrast(gathered, tally, places, by_key=key, examples=examples)
    except KafkaException as error:
        raise VerificationError(refused(error)) from error


def _check(outputs: Sequence[str], group_id: str | None, timeout: float) -> None:
    if isinstance(outputs, str) or not outputs:
        raise ConfigurationError("outputs must be a non-empty list of topics")
    for topic in outputs:
        check_text("a topic", topic)
        if list(outputs).count(topic) > 1:
            raise ConfigurationError(f"topic {topic!r} is given more than once")
    if group_id is not None:
        check_text("group_id", group_id)
    check_positive(timeout=timeout)


class _Comparing:
    """The state that the steps share."""

    def __init__(
        self,
        settings: ClientSettings,
        places: Places,
        cluster: Cluster,
        connections: Connections,
        tally: Tally,
        *,
        key: bool,
        timeout: float,
        watch: Watch | None,
    ) -> None:
        self._settings = settings
        self._places = places
        self._cluster = cluster
        self._connections = connections
        self._tally = tally
        self._key = key
        self._timeout = timeout
        self._watch = watch or (lambda _what, _done, _total: None)

    def gather(
        self,
        files: ParquetRows | None,
        outputs: frozenset[str],
        group_id: str | None,
        prefix: str | None,
    ) -> Gathered:
        """Reads and compares both sides."""
        places, cluster, tally = self._places, self._cluster, self._tally
        numbers = [*places.inputs, *places.outputs]
        # 1. The ends; wait until everything below them is committed or aborted.
        self._watch("Waiting for open transactions", 0, 1)
        settled = settle(cluster, places, numbers, lambda: self._open(prefix), self._timeout)
        unstable = self._unstable(group_id)
        # 2. The expectation, which may turn out to be unfit.
        expected: Rows = files or self._topic_rows(places.inputs, settled)
        visible = self._topic_rows(places.outputs, settled)
        self._add_expected(expected, outputs)
        # 3. The outputs, as a consumer sees them.
        for batch in visible.read(meter(self._watch, "Reading outputs", visible.total)):
            rows = batch
            if self._key:
                tally.add_keyless(row.number for row in batch if row.key is None)
                rows = [row for row in batch if row.key is not None]
            tally.add(VISIBLE, map(self._hashed(expected), rows))
        # Only now, because retention may have removed more in the meantime.
        lows = cluster.lows(places, numbers)
        # 4. Compare.
        self._watch("Comparing", 0, 1)
        if self._key:
            tally.compare_keys(by_partition=files is None)
            self._refuse_ambiguous(expected)
        else:
            tally.compare()
        return Gathered(expected, visible, settled, tuple(unstable), lows, group_id)

    def _open(self, prefix: str | None) -> set[Any]:
        return set() if prefix is None else open_transactions(self._connections, prefix)

    def _unstable(self, group_id: str | None) -> list[str]:
        if group_id is None:
            return []
        offsets = GroupOffsets(self._connections, group_id, self._timeout)
        count, unstable = offsets.pending()
        if not count:
            raise VerificationError(
                f"group {group_id!r} has no committed offset in any topic that may be described: "
                "check --group-id, or leave it out"
            )
        return unstable

    def _topic_rows(self, numbers: Sequence[int], settled: Settled) -> TopicRows:
        lows = self._cluster.lows(self._places, numbers)
        spans = {place: (low, settled.ends[place]) for place, low in lows.items()}
        reader = Reader(self._settings, self._places, "read_committed", self._timeout)
        return TopicRows(reader, self._places, spans)

    def _add_expected(self, expected: Rows, outputs: frozenset[str]) -> None:
        hashed = self._hashed(expected)
        for batch in expected.read(meter(self._watch, "Reading what is expected", expected.total)):
            self._tally.add(EXPECTED, map(hashed, self._fit(batch, expected, outputs)))

    def _fit(self, batch: list[Row], expected: Rows, outputs: frozenset[str]) -> Iterator[Row]:
        for row in batch:
            if expected.has_topic and row.topic not in outputs:
                what = "has no topic" if row.topic is None else f"is for topic {row.topic!r}"
                raise VerificationError(
                    f"the expected row {expected.name(row.number)} {what}: each must be for a "
                    "topic of --output"
                )
            if self._key and row.key is None:
                raise VerificationError(
                    f"the expected row {expected.name(row.number)} has no key: it can't be "
                    "compared by --key"
                )
            yield row

    def _hashed(self, expected: Rows) -> Callable[[Row], TallyRow]:
        """Returns the function that turns rows of either side into rows of the tally."""
        topics = {
            topic: topic.encode() if expected.has_topic else None
            for topic, _ in map(self._places.partition, self._places.outputs)
        }
        if self._key:
            return lambda row: (
                digest([topics.get(row.topic or ""), row.key]),
                None if row.value is None else digest([row.value]),
                row.number,
            )
        if expected.has_key:
            return lambda row: (
                digest([topics.get(row.topic or ""), row.key, row.value]),
                None,
                row.number,
            )
        return lambda row: (digest([topics.get(row.topic or ""), row.value]), None, row.number)

    def _refuse_ambiguous(self, expected: Rows) -> None:
        for numbers in self._tally.rows("first, last", "ambiguous", 1):
            first, last = (number for number in numbers if isinstance(number, int))
            key = next((shown(row.key) for row in expected.pick([first])), None)
            raise VerificationError(
                f"the expected rows {expected.name(first)} and {expected.name(last)} have the same "
                f"key {key!r} and different values: nothing says which is the last"
            )
