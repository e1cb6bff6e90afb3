"""Compares a staged query's output with the result of a plain batch query."""

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from confluent_kafka import Message

from chaos.expected import write_expected
from chaos.invariants import Rule, Violation
from chaos.loads import Load
from chaos.processes import reports_of
from chaos.stage import Stage
from chaos.staged_files import StagedFiles
from chaos.staged_loads import ATTEMPT
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.verify import Comparison, Difference, compare
from support.flow import consume
from support.groups import positions

_RULES = {
    Difference.MISSING: Rule.NOTHING_LOST,
    Difference.DUPLICATE: Rule.NOTHING_DOUBLED,
    Difference.UNEXPECTED: Rule.AS_COMPUTED,
    Difference.VALUE: Rule.AS_COMPUTED,
    Difference.OPEN: Rule.NOTHING_LEFT_OPEN,
}
# Before the query's end, input may be unprocessed, and a transaction may be open.
_ONLY_AT_THE_END = {Difference.MISSING, Difference.OPEN}
# Spark's errors if a query's state does not match its batches.
_NO_STATE = ("CANNOT_LOAD_STATE_STORE", "FAILED_TO_READ_DELTA_FILE")


def judge(stage: Stage, *, drained: bool) -> tuple[list[Violation], dict[str, int]]:
    assert stage.staged is not None
    load, counts = stage.load, {"records_in": stage.source.produced}
    _check_staged(stage.directory)
    # The query's own sorting decides the dead letters' order in a batch, so it is not judged.
    rows = {topic: consume(stage.servers, topic) for topic in stage.targets}
    counts["records_out"] = sum(map(len, rows.values()))
    counts["batches"] = stage.staged.last_batch() + 1
    found = [*not_of_one_copy(rows), *out_of_order(rows, load)]
    found += _state_not_found(stage.directory)
    if drained or not load.by_key:
        # With by_key, values before the end may still be replaced.
        comparison = _compared(stage)
        counts |= {kind.value: comparison.count(kind) for kind in Difference}
        found += differences(comparison, drained=drained)
    if drained:
        known = stage.group_offsets() or {}
        found += not_ended(
            stage.staged,
            positions(known),
            stage.progress_topic,
            int(load.options["progress_partitions"]),
        )
        found += not_swept(stage.staged)
    return found, counts


def _compared(stage: Stage) -> Comparison:
    expected = write_expected(
        stage.plan.load,
        stage.servers,
        stage.sources[0],
        stage.targets,
        stage.dead_letter_topics,
        stage.schemas(stage.checkpoint),
        stage.directory,
    )
    return compare(
        kafka={"bootstrap.servers": stage.servers},
        outputs=[*stage.targets, *stage.dead_letter_topics],
        expect=expected,
        key=stage.load.by_key,
        group_id=stage.name,
        prefix=f"spark-eos/{stage.name}/",
    )


def differences(comparison: Comparison, *, drained: bool) -> list[Violation]:
    """The violations that a comparison has found."""
    return [
        Violation(_RULES[kind], f"{found.count:,} {kind.value}, such as {found.examples[:1]}")
        for kind, found in comparison.anomalies.items()
        if drained or kind not in _ONLY_AT_THE_END
    ]


def not_of_one_copy(rows: Mapping[str, Iterable[Message]]) -> list[Violation]:
    """Batches with rows of more than one attempt."""
    attempts: dict[str, set[str]] = defaultdict(set)
    for message in itertools.chain.from_iterable(rows.values()):
        stamp = dict(message.headers() or []).get(ATTEMPT)
        if isinstance(stamp, bytes):
            batch, _, attempt = stamp.decode().partition(":")
            attempts[batch].add(attempt)
    mixed = sorted(batch for batch, found in attempts.items() if len(found) > 1)
    return [
        Violation(Rule.ONE_COPY, f"batch {batch} is of attempts {sorted(attempts[batch])}")
        for batch in mixed[:1]
    ]


def out_of_order(rows: Mapping[str, Iterable[Message]], load: Load) -> list[Violation]:
    """Keys whose rows are not in the order of their values."""
    last: dict[tuple[str, int | None, bytes], int] = {}
    for topic, messages in rows.items():
        for message in messages:
            value, key = message.value() or b"", message.key() or b""
            if not load.by_key and value[:1] == b"{":
                # Windows of a key are closed together, in any order.
                continue
            place = (topic, message.partition(), bytes(key))
            number = json.loads(value)["count"] if load.by_key else load.number(value)
            if number <= last.get(place, -1):
                where = f"{topic}:{message.partition()}:{message.offset()}"
                return [Violation(Rule.IN_ORDER, f"{where}: {number} after {last[place]}")]
            last[place] = number
    return []


def not_ended(
    files: StagedFiles, offsets: Mapping[TopicPartition, int], topic: str, partitions: int
) -> list[Violation]:
    """Progress partitions that are not at the end of the last batch."""
    end = (files.last_batch() + 1) << 32
    found = {index: offsets.get(TopicPartition(topic, index)) for index in range(partitions)}
    wrong = {index: offset for index, offset in found.items() if offset != end}
    return [Violation(Rule.BATCH_ENDED, f"{wrong} instead of {end}")] if wrong else []


def not_swept(files: StagedFiles) -> list[Violation]:
    """Copies of earlier batches that still exist."""
    last = files.last_batch()
    left = [p.name for p in files.copies() if int(p.name.partition("-")[0]) < last]
    return [Violation(Rule.COPIES_SWEPT, f"{left} after batch {last}")] if left else []


def _state_not_found(directory: Path) -> list[Violation]:
    logs = {log: log.read_text(errors="replace") for log in directory.glob("query-*.log")}
    return [
        Violation(Rule.STATE_KEPT, f"see {log.name}")
        for log, text in sorted(logs.items())
        if any(words in text for words in _NO_STATE)
    ][:1]


def _check_staged(directory: Path) -> None:
    for file in directory.glob("*.reports"):
        assert all(report["delivery"] == "staged" for report in reports_of(file)), file
