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
from spark_eos.verify.judging import Evidence, judge
from spark_eos.verify.ledger import Ledger
from spark_eos.verify.markers import Markers
from spark_eos.verify.matching import Matching, Outputs, Progress, input_rows
from spark_eos.verify.places import OFFSETS, Places
from spark_eos.verify.reading import Reader, refused
from spark_eos.verify.watching import Watch, meter

ISOLATION_LEVELS: Final = ("read_committed", "read_uncommitted")


def verify(
    *,
    kafka: Mapping[str, Any],
    inputs: Sequence[str],
    outputs: Sequence[str],
    position_header: str | None = None,
    header: str | None = None,
    key: bool = False,
    expect_header: str | None = None,
    group_id: str | None = None,
    prefix: str | None = None,
    isolation_level: str = "read_committed",
    complete: bool = False,
    timeout: float = 30.0,
    examples: int = 5,
    watch: Watch | None = None,
) -> Findings:
    """Judges from input and output topics alone whether each record was written exactly once.

    It only reads, and a query may run at the same time. Records are matched by exactly one of
    ``position_header``, ``header`` and ``key``. Compacted topics can't be judged.

    Args:
        kafka: Client settings by their librdkafka names; ``bootstrap.servers`` is required.
        inputs: Input topics.
        outputs: Output topics.
        position_header: Output header that holds the position of the source record, as
            ``topic:partition:offset``. Order is checked only with it.
        header: Header with the same value in input and output.
        key: Whether to match by the key, the same in input and output.
        expect_header: Input header that holds the number of outputs expected of the record, for
            queries that filter (0) or explode (n). Without it, one output of each is expected.
        group_id: Consumer group to which the query commits its offsets. Without it, all input is
            expected to be processed.
        prefix: Also report open transactions of transactional ids that begin with this.
        isolation_level: Isolation level at which to read the outputs; ``read_uncommitted`` shows
            what such a consumer is exposed to. Inputs are always read with ``read_committed``.
        complete: Whether input that the group has not yet processed counts as an anomaly.
        timeout: Seconds to wait for open transactions to end, and for each answer.
        examples: Maximum number of examples of each anomaly.
        watch: Called often with the current step, how much of it is done and how much there is.

    Returns:
        The findings; see `Findings.verdict`.

    Raises:
        ConfigurationError: An argument can't be used as given.
        TopicNotFoundError: A topic does not exist.
        DeadlineExceededError: The cluster does not answer in time.
        VerificationError: The topics can't be read, or their records can't be matched.

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
    matching = Matching(position_header, header, key, expect_header)
    _check(inputs, outputs, group_id, isolation_level, timeout)
    try:
        with ExitStack() as stack:
            ledger = stack.enter_context(Ledger())
            # First, because librdkafka is slow to report that a listener refuses it.
            connections = stack.enter_context(closing(Connections(settings, timeout)))
            cluster = Cluster(settings, timeout)
            places = Places(cluster.partitions(inputs), cluster.partitions(outputs))
            work = _Verification(
                settings, places, cluster, connections, ledger, matching, timeout, watch
            )
            evidence = work.gather(group_id, prefix, isolation_level)
            return judge(evidence, ledger, places, examples=examples, complete=complete)
    except KafkaException as error:
        raise VerificationError(refused(error)) from error


def _check(
    inputs: Sequence[str],
    outputs: Sequence[str],
    group_id: str | None,
    isolation_level: str,
    timeout: float,
) -> None:
    if isinstance(inputs, str) or isinstance(outputs, str) or not inputs or not outputs:
        raise ConfigurationError("inputs and outputs must be non-empty lists of topics")
    topics = [*inputs, *outputs]
    for topic in topics:
        check_text("a topic", topic)
        if topics.count(topic) > 1:
            raise ConfigurationError(f"topic {topic!r} is given more than once")
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
        settings: ClientSettings,
        places: Places,
        cluster: Cluster,
        connections: Connections,
        ledger: Ledger,
        matching: Matching,
        timeout: float,
        watch: Watch | None,
    ) -> None:
        self._settings = settings
        self._places = places
        self._cluster = cluster
        self._connections = connections
        self._ledger = ledger
        self._matching = matching
        self._timeout = timeout
        self._watch = watch or (lambda _what, _done, _total: None)

    def gather(self, group_id: str | None, prefix: str | None, isolation_level: str) -> Evidence:
        """Collects the evidence, in an order that is safe while a query runs.

        Input committed before the outputs' ends are taken has its output below those ends; and
        the source offset of every visible output is committed once the outputs have been read.
        """
        places, cluster, ledger = self._places, self._cluster, self._ledger
        # 1. The group's committed offsets: all input below them is due.
        before = self._committed(group_id, stable=False)[0]
        # 2. The outputs' ends; wait until everything below them is committed or aborted.
        self._watch("Waiting for open transactions", 0, 1)
        settled = settle(cluster, places, places.outputs, lambda: self._open(prefix), self._timeout)
        # 3. The outputs, as a consumer sees them.
        output_lows = cluster.lows(places, places.outputs)
        rows = Outputs(self._matching, places)
        reader = Reader(self._settings, places, isolation_level, self._timeout)
        spans = {place: (output_lows[place], end) for place, end in settled.ends.items()}
        for batch in reader.read(spans, self._meter("Reading outputs", spans)):
            matched, strays = rows.rows(batch)
            ledger.add_outputs(matched)
            ledger.add_strays(strays)
        # 4. The offsets again: visible output of input at or above them lacks its offset.
        after, unstable = self._committed(group_id, stable=True)
        self._refuse_unknown(group_id, after)
        # 5. The transaction markers in the log. After the outputs, so that a transaction without
        #    a marker had none when its records were read.
        self._read_markers()
        # 6. The inputs. After the outputs, so that they include the source of every output.
        progress = Progress(places, *((before, after) if group_id is not None else (None, None)))
        input_ends = cluster.ends(places, places.inputs, COMMITTED)
        self._read_inputs(input_ends, progress)
        # Only now, because retention may have removed more in the meantime.
        input_lows = cluster.lows(places, places.inputs)
        # 7. Match inputs and outputs.
        self._watch("Matching", 0, 1)
        ledger.match(input_lows, self._unsure(output_lows, rows))
        # 8. Find out why outputs are missing.
        if ledger.count("lost"):
            self._read_attempts()
        return Evidence(
            by_position=self._matching.by_position,
            isolation_level=isolation_level,
            group_id=group_id,
            committed=after,
            unstable=unstable,
            input_lows=input_lows,
            input_ends=input_ends,
            settled=settled,
        )

    def _committed(self, group_id: str | None, *, stable: bool) -> tuple[dict[int, int], set[int]]:
        if group_id is None:
            return {}, set()
        offsets = GroupOffsets(self._connections, self._places, group_id, self._timeout)
        return offsets.committed(self._places.inputs, stable=stable)

    def _refuse_unknown(self, group_id: str | None, committed: Mapping[int, int]) -> None:
        if group_id is not None and not committed:
            raise VerificationError(
                f"group {group_id!r} has no committed offset in any input topic: there is nothing "
                "to judge; check --group-id and --input"
            )

    def _open(self, prefix: str | None) -> set[Any]:
        return set() if prefix is None else open_transactions(self._connections, prefix)

    def _read_markers(self) -> None:
        places, cluster = self._places, self._cluster
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
        lows = self._cluster.lows(self._places, self._places.inputs)
        spans = {place: (lows[place], end) for place, end in ends.items()}
        reader = Reader(self._settings, self._places, ISOLATION_LEVELS[0], self._timeout)
        for batch in reader.read(spans, self._meter("Reading inputs", spans)):
            self._ledger.add_inputs(input_rows(batch, self._matching, self._places, progress))

    def _read_attempts(self) -> None:
        spans = self._ledger.uncommitted_spans()
        if not spans:
            return
        rows = Outputs(self._matching, self._places)
        reader = Reader(self._settings, self._places, ISOLATION_LEVELS[1], self._timeout)
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
