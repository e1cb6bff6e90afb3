"""The verification, in numbered steps."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final

from confluent_kafka import KafkaException

from spark_eos.client.checks import check_positive, check_text
from spark_eos.client.settings import ClientSettings
from spark_eos.errors import ConfigurationError, VerificationError
from spark_eos.verify.cluster import COMMITTED, UNCOMMITTED, Cluster, open_transactions, settle
from spark_eos.verify.connections import Connections
from spark_eos.verify.findings import Findings
from spark_eos.verify.group_offsets import GroupOffsets
from spark_eos.verify.input_offsets import DirectOffsets, InputOffsets
from spark_eos.verify.judging import Evidence, judge
from spark_eos.verify.ledger import Ledger
from spark_eos.verify.markers import Markers
from spark_eos.verify.matching import Matching, Outputs, Progress, input_rows
from spark_eos.verify.mirrored_offsets import MirroredOffsets
from spark_eos.verify.places import OFFSETS, Places
from spark_eos.verify.reading import Reader, refused
from spark_eos.verify.watching import Watch, meter

ISOLATION_LEVELS: Final = ("read_committed", "read_uncommitted")


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
    """Judges from input and output topics alone whether each record was written exactly once.

    It only reads, and a query may run at the same time. Records are matched by exactly one of
    ``position_header``, ``header`` and ``key``. Compacted topics can't be judged.

    Args:
        kafka: Client settings by their librdkafka names; ``bootstrap.servers`` is required.
        source_kafka: Client settings of the cluster that has the input topics, if it is another
            one; the outputs and the group are in the cluster of ``kafka``.
        inputs: Input topics.
        outputs: Output topics.
        position_header: Output header that holds the position of the source record, as
            ``topic:partition:offset``. Order is checked only with it.
        header: Header with the same value in input and output.
        key: Whether to match by the key, the same in input and output.
        expect_header: Input header that holds the number of outputs expected of the record, for
            queries that filter (0) or explode (n). Without it, one output of each is expected.
        dead_letter_topics: Further outputs, which hold dead letters: each input record is to be
            output or dead letter. By position, their own headers tell it.
        group_id: Consumer group to which the query commits its offsets. Without it, all input is
            expected to be processed.
        prefix: Also report open transactions of transactional ids that begin with this.
        isolation_level: Isolation level at which to read the outputs; ``read_uncommitted`` shows
            what such a consumer is exposed to. Inputs are always read with ``read_committed``.
        complete: Whether input that the group has not yet processed counts as an anomaly.
        at_most_once_each: Whether input records may have no output, for queries that filter; with
            ``expect_header``, fewer than it says. Lost is then only what an aborted or open
            transaction held and no other one wrote.
        timeout: Seconds to wait for open transactions to end, and for each answer.
        examples: Maximum number of examples of each anomaly.
        watch: Called often with the current step, how much of it is done and how much there is.

    Returns:
        The findings; see `Findings.verdict`.

    Raises:
        ConfigurationError: An argument can't be used as given.
        TopicNotFoundError: A topic does not exist.
        DeadlineExceededError: The cluster does not answer in time.
        VerificationError: The topics can't be read, or their records can't be matched; or the
            group's offsets are those of another source cluster or of a topic that was recreated.

    Example:
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
    settings = ClientSettings(kafka)
    source_settings = None if source_kafka is None else _source_settings(source_kafka)
    matching = Matching(
        position_header,
        header,
        key,
        expect_header,
        frozenset(dead_letter_topics),
        at_most_once_each,
    )
    outputs = outputs if isinstance(outputs, str) else [*outputs, *dead_letter_topics]
    _check(inputs, outputs, group_id, isolation_level, timeout, apart=source_kafka is not None)
    try:
        with ExitStack() as stack:
            ledger = stack.enter_context(Ledger())
            # First, because librdkafka is slow to report that a listener refuses it.
            connections = stack.enter_context(closing(Connections(settings, timeout)))
            target = source = Cluster(settings, timeout)
            source_connections = None
            if source_settings is not None:
                source_connections = stack.enter_context(
                    closing(Connections(source_settings, timeout))
                )
                source = Cluster(source_settings, timeout)
            places = Places(source.partitions(inputs), target.partitions(outputs))
            offsets: DirectOffsets | MirroredOffsets | None = None
            if group_id is not None:
                group = GroupOffsets(connections, group_id, timeout)
                offsets = (
                    DirectOffsets(group, places)
                    if source_connections is None
                    else MirroredOffsets(group, places, target, source_connections)
                )
            work = _Verification(
                places, source, target, connections, offsets, ledger, matching, timeout, watch
            )
            evidence = work.gather(group_id, prefix, isolation_level)
            return judge(evidence, ledger, places, examples=examples, complete=complete)
    except KafkaException as error:
        raise VerificationError(refused(error)) from error


def _source_settings(source_kafka: Mapping[str, Any]) -> ClientSettings:
    try:
        return ClientSettings(source_kafka)
    except ConfigurationError as error:
        raise ConfigurationError(f"source_kafka: {error}") from error


def _check(
    inputs: Sequence[str],
    outputs: Sequence[str],
    group_id: str | None,
    isolation_level: str,
    timeout: float,
    *,
    apart: bool,
) -> None:
    if isinstance(inputs, str) or isinstance(outputs, str) or not inputs or not outputs:
        raise ConfigurationError("inputs and outputs must be non-empty lists of topics")
    for topics in (inputs, outputs):
        for topic in topics:
            check_text("a topic", topic)
            if list(topics).count(topic) > 1:
                raise ConfigurationError(f"topic {topic!r} is given more than once")
    if both := not apart and {*inputs} & {*outputs}:
        raise ConfigurationError(
            f"topic {min(both)!r} is both input and output: if the query reads it in another "
            "cluster, give source_kafka (--source-bootstrap-servers)"
        )
    if group_id is not None:
        check_text("group_id", group_id)
    if isolation_level not in ISOLATION_LEVELS:
        raise ConfigurationError(
            f"isolation_level={isolation_level!r} must be one of {', '.join(ISOLATION_LEVELS)}"
        )
    check_positive(timeout=timeout)


class _Verification:
    """The state that the steps share."""

    def __init__(
        self,
        places: Places,
        source: Cluster,
        target: Cluster,
        connections: Connections,
        offsets: DirectOffsets | MirroredOffsets | None,
        ledger: Ledger,
        matching: Matching,
        timeout: float,
        watch: Watch | None,
    ) -> None:
        self._places = places
        self._source = source
        self._target = target
        self._connections = connections
        self._offsets = offsets
        self._ledger = ledger
        self._matching = matching
        self._timeout = timeout
        self._watch = watch or (lambda _what, _done, _total: None)

    def gather(self, group_id: str | None, prefix: str | None, isolation_level: str) -> Evidence:
        """Collects the evidence, in an order that is safe while a query runs.

        Input committed before the outputs' ends are taken has its output below those ends; and
        the source offset of every visible output is committed once the outputs have been read.
        """
        places, source, target, ledger = self._places, self._source, self._target, self._ledger
        # 1. The group's committed offsets: all input below them is due.
        before = self._committed(stable=False).committed
        # 2. The outputs' ends; wait until everything below them is committed or aborted.
        self._watch("Waiting for open transactions", 0, 1)
        settled = settle(target, places, places.outputs, lambda: self._open(prefix), self._timeout)
        # 3. The outputs, as a consumer sees them.
        output_lows = target.lows(places, places.outputs)
        rows = Outputs(self._matching, places)
        reader = Reader(target.settings, places, isolation_level, self._timeout)
        spans = {place: (output_lows[place], end) for place, end in settled.ends.items()}
        for batch in reader.read(spans, self._meter("Reading outputs", spans)):
            matched, strays = rows.rows(batch)
            ledger.add_outputs(matched)
            ledger.add_strays(strays)
        # 4. The offsets again: visible output of input at or above them lacks its offset.
        after = self._committed(stable=True)
        if self._offsets is not None and not after.committed:
            raise self._offsets.nothing()
        # 5. The transaction markers in the log. After the outputs, so that a transaction without
        #    a marker had none when its records were read.
        self._read_markers()
        # 6. The inputs. After the outputs, so that they include the source of every output.
        progress = self._progress(before, after.committed)
        input_ends = source.ends(places, places.inputs, COMMITTED)
        self._read_inputs(input_ends, progress)
        # Only now, because retention may have removed more in the meantime.
        input_lows = source.lows(places, places.inputs)
        # 7. Match inputs and outputs.
        self._watch("Matching", 0, 1)
        at_most = self._matching.at_most_once_each
        ledger.match(input_lows, self._unsure(output_lows, rows), at_most_once_each=at_most)
        # 8. Find out why outputs are missing.
        if ledger.count("missing"):
            self._read_attempts()
        return Evidence(
            by_position=self._matching.by_position,
            at_most_once_each=at_most,
            expects_numbers=self._matching.expect_header is not None,
            isolation_level=isolation_level,
            group_id=group_id,
            committed=after.committed,
            unstable=after.unstable,
            input_lows=input_lows,
            input_ends=input_ends,
            settled=settled,
        )

    def _committed(self, *, stable: bool) -> InputOffsets:
        return InputOffsets({}) if self._offsets is None else self._offsets.read(stable=stable)

    def _progress(self, before: Mapping[int, int], after: Mapping[int, int]) -> Progress:
        both = (None, None) if self._offsets is None else (before, after)
        return Progress(self._places, *both)

    def _open(self, prefix: str | None) -> set[Any]:
        return set() if prefix is None else open_transactions(self._connections, prefix)

    def _read_markers(self) -> None:
        places, cluster = self._places, self._target
        topics = sorted({places.partition(place)[0] for place in places.outputs})
        markers = Markers(
            self._connections,
            places,
            lambda: cluster.leaders(topics),
            self._timeout,
        )
        lows = cluster.lows(places, places.outputs)
        # The current high watermarks: a marker may lie beyond the end of the records read.
        ends = cluster.ends(places, places.outputs, UNCOMMITTED)
        spans = {place: (lows[place], ends[place]) for place in places.outputs}
        meter = self._meter("Reading transaction markers", spans)
        for place, (low, end) in spans.items():
            self._ledger.add_uncommitted(markers.uncommitted(place, low, end, meter))

    def _read_inputs(self, ends: Mapping[int, int], progress: Progress) -> None:
        lows = self._source.lows(self._places, self._places.inputs)
        spans = {place: (lows[place], end) for place, end in ends.items()}
        reader = Reader(self._source.settings, self._places, ISOLATION_LEVELS[0], self._timeout)
        for batch in reader.read(spans, self._meter("Reading inputs", spans)):
            self._ledger.add_inputs(input_rows(batch, self._matching, self._places, progress))

    def _read_attempts(self) -> None:
        spans = self._ledger.uncommitted_spans()
        if not spans:
            return
        rows = Outputs(self._matching, self._places)
        reader = Reader(self._target.settings, self._places, ISOLATION_LEVELS[1], self._timeout)
        for batch in reader.read(spans, self._meter("Reading aborted outputs", spans)):
            self._ledger.add_attempts((row[0], row[1]) for row in rows.rows(batch)[0])

    def _unsure(self, output_lows: Mapping[int, int], rows: Outputs) -> dict[int, int]:
        """Returns, by input place, the offset below which retention may have removed outputs.

        In an output partition that retention has shortened, the removed outputs of an input
        partition come before the first remaining one.
        """
        found: dict[int, int] = {}
        for output, low in output_lows.items():
            if low > 0:
                for place in self._places.inputs:
                    first = rows.first[output].get(place, OFFSETS)
                    found[place] = max(found.get(place, 0), first)
        return found

    def _meter(self, what: str, spans: Mapping[int, tuple[int, int]]) -> Callable[[int], None]:
        return meter(self._watch, what, sum(max(0, end - low) for low, end in spans.values()))
