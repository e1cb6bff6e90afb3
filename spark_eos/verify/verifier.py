"""The verification, in numbered steps."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Final

from kafka import TopicPartition

from spark_eos._client.checks import check_positive, check_text
from spark_eos._client.settings import ClientSettings
from spark_eos.errors import ConfigurationError
from spark_eos.verify.cluster import Cluster
from spark_eos.verify.control_records import uncommitted
from spark_eos.verify.findings import Findings
from spark_eos.verify.group_offsets import CommittedOffsets
from spark_eos.verify.input_offsets import (
    DirectDelivery,
    InputOffsets,
    MirroredDelivery,
    check_not_staged,
)
from spark_eos.verify.judgement import Judgement
from spark_eos.verify.matching import Inputs, Matching, Outputs
from spark_eos.verify.open_transactions import settle
from spark_eos.verify.partitions import OFFSETS, SHIFT, Partitions, Spans, size
from spark_eos.verify.questions import Records
from spark_eos.verify.records import READ_COMMITTED, READ_UNCOMMITTED, Reader, Watch, meter, silent

ISOLATION_LEVELS: Final = (READ_COMMITTED, READ_UNCOMMITTED)


def verify(
    *,
    kafka: Mapping[str, Any],
    source_kafka: Mapping[str, Any] | None = None,
    inputs: Sequence[str],
    outputs: Sequence[str],
    position_header: str | None = None,
    header: str | None = None,
    key: bool = False,
    expect_header: str | None = None,
    dead_letter_topics: Sequence[str] = (),
    group_id: str | None = None,
    prefix: str | None = None,
    isolation_level: str = "read_committed",
    complete: bool = False,
    at_most_once_each: bool = False,
    timeout: float = 30.0,
    examples: int = 5,
    watch: Watch | None = None,
) -> Findings:
    """Judge from input and output topics alone whether each record was written exactly once.

    Verifying only reads, so the query may run at the same time. Records are matched by exactly one
    of ``position_header``, ``header`` and ``key``. Compacted topics can't be judged.

    Args:
        kafka: Client settings by their librdkafka names; ``bootstrap.servers`` is required.
        source_kafka: Client settings for the cluster of the input topics, if it is a different
            one. The outputs and the group are in the cluster of ``kafka``.
        inputs: Input topics.
        outputs: Output topics.
        position_header: Output header that holds the position of the source record, as
            ``topic:partition:offset``. Order is checked only if records are matched by it.
        header: Header with the same value in input and output.
        key: Whether to match by the key, which is the same in input and output.
        expect_header: Input header that holds the number of outputs expected for the record, for
            queries that filter (0) or explode (n). Without it, each record should have one output.
        dead_letter_topics: Further output topics, which hold dead letters: each input record must
            become output or a dead letter. When matching by position, dead letters are matched by
            their own headers. Other queries may write to these topics too: only dead letters of
            ``group_id`` count or, without a group, dead letters from input topics.
        group_id: Consumer group to which the query commits its offsets. Without it, all input is
            expected to be processed.
        prefix: Also report open transactions whose transactional ids begin with this prefix.
        isolation_level: Isolation level at which to read the outputs; ``read_uncommitted`` shows
            what a consumer at that level sees. Inputs are always read with ``read_committed``.
        complete: Whether input that the group has not yet processed counts as an anomaly.
        at_most_once_each: Whether input records may have no output, for queries that filter; with
            ``expect_header``, fewer outputs than it says. An output then counts as lost only if an
            aborted or open transaction held it and no other transaction wrote it.
        timeout: Seconds to wait for open transactions to end, and for each answer.
        examples: Maximum number of examples of each anomaly.
        watch: Called often with the current step, the amount done and the total amount.

    Returns:
        The findings; see `Findings.verdict`.

    Raises:
        ConfigurationError: An argument can't be used as given.
        TopicNotFoundError: A topic does not exist.
        DeadlineExceededError: The cluster does not answer in time.
        VerificationError: A topic is compacted or can't be read, its records can't be matched, or
            the group's offsets belong to another source cluster or to a recreated topic.

    Examples:
        ::

            findings = verify(
                kafka={"bootstrap.servers": "localhost:9092"},
                inputs=["orders"],
                outputs=["orders-enriched"],
                position_header="source",
                group_id="order-processors",
            )
            assert findings.verdict is Verdict.SOUND, findings.anomalies
    """
    settings = ClientSettings(kafka).checked_by_librdkafka()
    source_settings = ClientSettings.of_source(source_kafka)
    matching = Matching(
        position_header,
        header,
        key,
        expect_header,
        frozenset(dead_letter_topics),
        at_most_once_each,
    )
    _check_topics(inputs, "inputs")
    outputs = outputs if isinstance(outputs, str) else [*outputs, *dead_letter_topics]
    check_arguments(outputs, group_id, timeout)
    if both := source_kafka is None and {*inputs} & {*outputs}:
        raise ConfigurationError(
            f"topic {min(both)!r} is both input and output: if the query reads it in another "
            "cluster, give source_kafka (--source-bootstrap-servers)"
        )
    if isolation_level not in ISOLATION_LEVELS:
        raise ConfigurationError(
            f"isolation_level={isolation_level!r} must be one of {', '.join(ISOLATION_LEVELS)}"
        )
    with ExitStack() as stack:
        # Connect first, because librdkafka is slow to report that a listener refuses it.
        source = target = stack.enter_context(closing(Cluster(settings, timeout)))
        if source_settings is not None:
            source = stack.enter_context(closing(Cluster(source_settings, timeout)))
        partitions = Partitions(source.partition_counts(inputs))
        written = Partitions(target.partition_counts(outputs))
        notes = [*source.not_compacted(inputs), *target.not_compacted(outputs)]
        records = stack.enter_context(Records(partitions))
        parts = (matching, partitions, written, records, isolation_level, group_id)
        work = _Verification(*parts, source=source, target=target, watch=watch or silent)
        work.reconcile(prefix)
        return work.findings(notes, examples=examples, complete=complete)


def check_arguments(outputs: Sequence[str], group_id: str | None, timeout: float) -> None:
    """Check the arguments that `verify` and `compare` have in common."""
    _check_topics(outputs, "outputs")
    if group_id is not None:
        check_text("group_id", group_id)
    check_positive(timeout=timeout)


def _check_topics(topics: Sequence[str], what: str) -> None:
    """Raise ConfigurationError unless topics are a list of distinct names."""
    if isinstance(topics, str) or not topics:
        raise ConfigurationError(f"{what} must be a non-empty list of topics")
    for topic in topics:
        check_text("a topic", topic)
        if list(topics).count(topic) > 1:
            raise ConfigurationError(f"topic {topic!r} is given more than once")


@dataclass(kw_only=True)
class _Verification(Judgement):
    """The steps of a verification, which set the fields to be judged."""

    source: Cluster
    target: Cluster
    watch: Watch

    def reconcile(self, prefix: str | None) -> None:
        """Read and match everything, in an order that is safe while the query runs."""
        # If input is committed before the outputs' ends are taken, its output is below those ends.
        # Once the outputs have been read, the source offset of every visible output is committed.
        source, target, records = self.source, self.target, self.records
        # 1. The group's committed offsets: all input below them is due.
        progress = None if self.group_id is None else self._progress(self.group_id)
        before = None if progress is None else progress.read(stable=False)
        # 2. The outputs' ends; wait until everything below them is committed or aborted.
        self.watch("Waiting for open transactions", 0, 1)
        self.settled = settle(target, self.outputs, prefix)
        # 3. The outputs, as a consumer sees them.
        lows = target.lows(self.outputs)
        self.rows = Outputs(self.matching, self.inputs, self.outputs, self.group_id)
        short = self.settled.short if self.isolation_level == READ_COMMITTED else {}
        reader = Reader(target, self.outputs, self.isolation_level, short)
        spans = {partition: (lows[partition], end) for partition, end in self.settled.ends.items()}
        for batch in reader.read(spans, self._meter("Reading outputs", spans)):
            records.add_outputs(*self.rows.rows(batch))
        self.rows.check_named()
        # Look up the lows again: retention may have removed further records before they were read.
        unsure = self._unsure(target.lows(self.outputs))
        # 4. The offsets again: visible output whose input is at or above them lacks its offset.
        after = None if progress is None else progress.read(stable=True)
        self.offsets = after or InputOffsets({})
        # 5. The control records in the log, after the outputs: a transaction that has no control
        #    record now had none when its records were read.
        self._read_control_records(lows)
        # 6. The inputs, after the outputs, so that they include the source of every output.
        self.input_ends = source.stable_ends(self.inputs)
        self._read_inputs(Inputs(self.matching, self.inputs, before, after))
        self.input_lows = source.lows(self.inputs)
        # 7. Match inputs and outputs.
        self.watch("Matching", 0, 1)
        records.match(
            {
                base >> SHIFT: (self.input_lows[partition], unsure[partition])
                for partition, base in self.inputs.bases.items()
            },
            at_most_once_each=self.matching.at_most_once_each,
            one_each=self.matching.expect_header is None,
        )
        # 8. Find out why outputs are missing.
        if records.number("SELECT COUNT(*) FROM missing"):
            self._read_attempts()

    def _progress(self, group_id: str) -> DirectDelivery | MirroredDelivery:
        group = CommittedOffsets(self.target, group_id)
        check_not_staged(group)
        if self.source is self.target:
            return DirectDelivery(group, self.inputs)
        return MirroredDelivery(group, self.inputs, self.target, self.source)

    def _unsure(self, lows: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return, by input partition, the offset below which outputs may have been removed."""
        # If retention has shortened an output partition, the removed outputs come from source
        # offsets below that of the first remaining output of the same input partition.
        shortened = {
            self.outputs.base(partition) | low for partition, low in lows.items() if low > 0
        }
        firsts = self.records.first_sources(shortened)
        return {
            partition: max((first.get(base >> SHIFT, OFFSETS) for first in firsts), default=0)
            for partition, base in self.inputs.bases.items()
        }

    def _read_control_records(self, lows: Mapping[TopicPartition, int]) -> None:
        target, outputs = self.target, self.outputs
        # Read to the current high watermarks: a control record may lie beyond the records' end.
        spans = {
            partition: (lows[partition], end) for partition, end in target.ends(outputs).items()
        }
        advance = self._meter("Reading transaction markers", spans)
        for partition, (low, end) in spans.items():
            self.records.add_uncommitted(
                outputs.base(partition), uncommitted(target, partition, low, end, advance)
            )

    def _read_inputs(self, rows: Inputs) -> None:
        lows = self.source.lows(self.inputs)
        spans = {partition: (lows[partition], end) for partition, end in self.input_ends.items()}
        reader = Reader(self.source, self.inputs, READ_COMMITTED)
        for batch in reader.read(spans, self._meter("Reading inputs", spans)):
            self.records.add_inputs(rows.rows(batch))

    def _read_attempts(self) -> None:
        spans = {
            self.outputs.partition(first): (first & OFFSETS, (last & OFFSETS) + 1)
            for first, last in self.records.uncommitted_spans()
        }
        if not spans:
            return
        rows = Outputs(self.matching, self.inputs, self.outputs, self.group_id)
        reader = Reader(self.target, self.outputs, READ_UNCOMMITTED)
        for batch in reader.read(spans, self._meter("Reading aborted outputs", spans)):
            self.records.add_attempts(rows.rows(batch)[0])

    def _meter(self, what: str, spans: Spans) -> Callable[[int], None]:
        return meter(self.watch, what, size(spans))
