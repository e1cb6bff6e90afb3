"""Compares outputs with the rows that the user expects, in numbered steps."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from kafka import TopicPartition

from spark_eos._client.checks import check_text
from spark_eos._client.locations import without_credentials
from spark_eos._client.settings import ClientSettings
from spark_eos.errors import ConfigurationError, VerificationError
from spark_eos.verify.cluster import Cluster
from spark_eos.verify.findings import Comparison, Difference, Finding, RowExample
from spark_eos.verify.group_offsets import CommittedOffsets
from spark_eos.verify.open_transactions import Settled, settle
from spark_eos.verify.partitions import Partitions, name_of
from spark_eos.verify.records import READ_COMMITTED, Reader, Watch, meter, silent
from spark_eos.verify.row_counts import EXPECTED, VISIBLE, HashedRow, RowCounts, digest
from spark_eos.verify.rows import ParquetRows, Row, TopicRows, shown
from spark_eos.verify.verifier import check_arguments

_TOPIC: Final = "topic:"
# Keys of ``unjudged`` in the JSON document, and therefore part of the public interface.
_OUTPUTS_REMOVED: Final = "missing rows, where retention has removed outputs"
_EXPECTED_REMOVED: Final = "surplus outputs, where retention has removed what was expected"
_ELSEWHERE: Final = "keys in several partitions, of which no order says which value is the last"

_Rows = ParquetRows | TopicRows
_Case = tuple[int | None, int | None, int | None, str]
"""Expected row, first and last output, and detail."""


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
    """Compare the rows that read_committed consumers see in topics with the rows you expect.

    Use it for queries whose outputs have no single source record, such as aggregations and joins.
    Compute the expected rows with a plain batch query over all input. Rows are compared as
    multisets of keys and values, and of topics if the expected rows have that column. Output
    topics must not be compacted unless rows are compared by key.

    Args:
        kafka: Client settings by their librdkafka names; ``bootstrap.servers`` is required.
        outputs: Output topics.
        expect: The expected rows: ``topic:NAME`` for a topic in the same cluster, or a Parquet
            file or directory, as a path or as a URI of a file system that pyarrow knows. Files
            have a column ``value`` and optionally ``key`` and ``topic``, binary or string. Keys
            are compared only if there is a ``key`` column.
        key: Whether to compare only the last value of each key, which is all that consumers keep
            of output in update or complete mode. A null value counts as no value.
        group_id: The query's consumer group. If given, also wait for open transactions that are
            about to change its offsets, and report those that stay open.
        prefix: Also report open transactions whose transactional ids begin with this prefix.
        timeout: Seconds to wait for open transactions to end, and for each answer.
        examples: Maximum number of examples of each difference.
        watch: Called often with the current step, the amount done and the total amount.

    Returns:
        The comparison; see `Comparison.verdict`.

    Raises:
        ConfigurationError: An argument, or a file or column of the expected rows, can't be used;
            raised before anything is read.
        TopicNotFoundError: A topic does not exist.
        DeadlineExceededError: The cluster does not answer in time.
        VerificationError: The topics or files can't be read, a topic is compacted and ``key`` is
            not given, or expected rows lack a key or topic.

    Examples:
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
    settings = ClientSettings(kafka).checked_by_librdkafka()
    check_arguments(outputs, group_id, timeout)
    where = os.fspath(expect)
    topic = where.removeprefix(_TOPIC) if where.startswith(_TOPIC) else None
    files = ParquetRows(where) if topic is None else None
    if topic is not None:
        check_text(f"the topic of --expect {where!r}", topic)
        if topic in outputs:
            raise ConfigurationError(f"topic {topic!r} is both --expect and --output")
    if key and files is not None and not files.has_key:
        raise ConfigurationError(
            f"--key needs a column 'key' in --expect {without_credentials(where)!r}"
        )
    topics = [] if topic is None else [topic]
    with RowCounts() as counts, closing(Cluster(settings, timeout)) as cluster:
        expected = Partitions(cluster.partition_counts(topics))
        written = Partitions(cluster.partition_counts(outputs))
        # A compacted topic still has the last value of each key.
        notes = [] if key else cluster.not_compacted([*outputs, *topics])
        work = _Comparing(cluster, expected, written, counts, key, watch or silent)
        work.settle(group_id, prefix)
        work.compare(files)
        return work.comparison(examples, notes)


@dataclass
class _Comparing:
    """State shared by the steps; each step sets the fields that later steps need."""

    cluster: Cluster
    expected_partitions: Partitions
    outputs: Partitions
    counts: RowCounts
    by_key: bool
    watch: Watch
    settled: Settled = field(init=False)
    held_up: list[RowExample] = field(init=False)
    expected: _Rows = field(init=False)
    visible: TopicRows = field(init=False)
    lows: Mapping[TopicPartition, int] = field(init=False)

    def settle(self, group_id: str | None, prefix: str | None) -> None:
        """1. Take the ends, and wait until every transaction below them has ended."""
        self.watch("Waiting for open transactions", 0, 1)
        everything = [*self.expected_partitions, *self.outputs]
        self.settled = settle(self.cluster, everything, prefix)
        unstable: set[TopicPartition] = set()
        if group_id is not None:
            offsets, unstable = CommittedOffsets(self.cluster, group_id).read(stable=True)
            if not offsets and not unstable:
                raise VerificationError(
                    f"group {group_id!r} has no committed offset in any topic that you may "
                    "describe: check --group-id, or leave it out"
                )
        names = sorted(map(name_of, unstable))
        self.held_up = [
            RowExample(outputs=outputs, detail=detail)
            for outputs, detail in self.settled.held_up(group_id, names)
        ]

    def compare(self, files: ParquetRows | None) -> None:
        """2. Read both sides and compare them."""
        counts = self.counts
        self.expected = files or self._topic_rows(self.expected_partitions)
        self.visible = self._topic_rows(self.outputs)
        # Read the expected rows first, since they may turn out to be unusable.
        advance = meter(self.watch, "Reading expected rows", self.expected.total)
        for batch in self.expected.read(advance):
            counts.add(EXPECTED, map(self._hashed, self._fit(batch)))
        for batch in self.visible.read(meter(self.watch, "Reading outputs", self.visible.total)):
            rows = batch
            if self.by_key:
                counts.add_keyless(row.number for row in batch if row.key is None)
                rows = [row for row in batch if row.key is not None]
            counts.add(VISIBLE, map(self._hashed, rows))
        # Look up the lows only now: retention may have removed records in the meantime.
        self.lows = self.cluster.lows([*self.expected_partitions, *self.outputs])
        self.watch("Comparing", 0, 1)
        if self.by_key:
            counts.compare_keys(by_partition=files is None)
            self._refuse_ambiguous()
        else:
            counts.compare()

    def _topic_rows(self, partitions: Partitions) -> TopicRows:
        lows = self.cluster.lows(partitions)
        spans = {partition: (low, self.settled.ends[partition]) for partition, low in lows.items()}
        reader = Reader(self.cluster, partitions, READ_COMMITTED, self.settled.short)
        return TopicRows(reader, partitions, spans)

    def _fit(self, batch: list[Row]) -> Iterator[Row]:
        outputs = {partition.topic for partition in self.outputs}
        for row in batch:
            if self.expected.has_topic and row.topic not in outputs:
                what = "has no topic" if row.topic is None else f"is for topic {row.topic!r}"
                raise VerificationError(
                    f"the expected row {self.expected.name(row.number)} {what}: each must be for "
                    "one of the --output topics"
                )
            if self.by_key and row.key is None:
                raise VerificationError(
                    f"the expected row {self.expected.name(row.number)} has no key: it can't be "
                    "compared by --key"
                )
            yield row

    def _hashed(self, row: Row) -> HashedRow:
        topic = row.topic.encode() if row.topic and self.expected.has_topic else None
        if self.by_key:
            value = None if row.value is None else digest([row.value])
            return digest([topic, row.key]), value, row.number
        key = row.key if self.expected.has_key else None
        return digest([topic, key, row.value]), None, row.number

    def _refuse_ambiguous(self) -> None:
        for first, last in self.counts.ask("SELECT first, last FROM ambiguous LIMIT 1"):
            key = next((shown(row.key) for row in self.expected.pick([first])), None)
            names = f"{self.expected.name(first)} and {self.expected.name(last)}"
            raise VerificationError(
                f"the expected rows {names} have the same key {key!r} and different values: "
                "it is unclear which is the last"
            )

    def comparison(self, most: int, notes: Iterable[str]) -> Comparison:
        """3. Count each kind of difference, and reread examples, since SQL has only hashes."""
        ask, lows = self.counts.number, self.lows
        other = Difference.VALUE if self.by_key else Difference.DUPLICATE
        kinds = (Difference.MISSING, other, Difference.UNEXPECTED)
        counts = {kind: ask(f"SELECT SUM(number) FROM {kind.value}") for kind in kinds}
        unjudged = self.settled.unjudged() | dict.fromkeys(
            (_OUTPUTS_REMOVED, _EXPECTED_REMOVED, _ELSEWHERE), 0
        )
        if any(lows[partition] for partition in self.outputs):
            unjudged[_OUTPUTS_REMOVED] = counts.pop(Difference.MISSING)
        if any(lows[partition] for partition in self.expected_partitions):
            for kind in (Difference.DUPLICATE, Difference.UNEXPECTED):
                unjudged[_EXPECTED_REMOVED] += counts.pop(kind, 0)
        if self.by_key:
            unjudged[_ELSEWHERE] = ask("SELECT COUNT(*) FROM unsure")
        cases: dict[Difference, list[_Case]] = {
            kind: self.counts.ask(
                f"SELECT source, first, last, detail FROM {kind.value} LIMIT ?", most
            )
            for kind in counts
        }
        keyless = self.counts.ask("SELECT position FROM keyless LIMIT ?", most)
        unkeyed: list[_Case] = [(None, at, at, "without a key") for (at,) in keyless]
        cases.setdefault(Difference.UNEXPECTED, []).extend(unkeyed)
        without_key = ask("SELECT COUNT(*) FROM keyless")
        counts[Difference.UNEXPECTED] = counts.get(Difference.UNEXPECTED, 0) + without_key
        examples = self._examples(cases)
        findings = {
            kind: Finding(counts.get(kind, 0), tuple(examples.get(kind, ())[:most]))
            for kind in kinds
        }
        findings[Difference.OPEN] = Finding(len(self.held_up), tuple(self.held_up[:most]))
        side = "SELECT COUNT(*) FROM rows WHERE side ="
        return Comparison(
            rows_expected=ask(f"{side} {EXPECTED}"),
            records_out=ask(f"{side} {VISIBLE}") + without_key,
            by_key=self.by_key,
            found={kind: findings[kind] for kind in Difference if kind in findings},
            unjudged={reason: count for reason, count in unjudged.items() if count},
            notes=(*notes, *self._notes()),
        )

    def _examples(
        self, cases: Mapping[Difference, Sequence[_Case]]
    ) -> dict[Difference, list[RowExample]]:
        """Read the keys and values of the cases; rows removed in the meantime have neither."""
        all_cases = [case for kind_cases in cases.values() for case in kind_cases]
        wanted = _picked(self.expected, {source for source, *_ in all_cases if source is not None})
        seen = _picked(self.visible, {first for _, first, *_ in all_cases if first is not None})
        examples: dict[Difference, list[RowExample]] = {}
        for kind, kind_cases in cases.items():
            examples[kind] = []
            for source, first, last, detail in kind_cases:
                key, expected = wanted.get(source, (None, None))
                value = expected
                if kind is not Difference.MISSING:
                    key, value = seen.get(first, (key, None))
                examples[kind].append(
                    RowExample(
                        key,
                        value,
                        expected if kind is Difference.VALUE else None,
                        None if source is None else self.expected.name(source),
                        self.outputs.positions(first, last),
                        detail,
                    )
                )
        return examples

    def _notes(self) -> Iterator[str]:
        yield from self.settled.notes()
        if not self.expected.has_key:
            yield "keys were not compared, since the expected rows have no column 'key'"
        if self.settled.short:
            yield "records behind open transactions can't be seen, which may explain differences"


def _picked(rows: _Rows, numbers: set[int]) -> dict[int | None, tuple[str | None, str | None]]:
    """Return the keys and values of some rows, shortened for display."""
    return {row.number: (shown(row.key), shown(row.value)) for row in rows.pick(numbers)}
