"""What tasks report to the driver, and the driver to the user."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa

WRITTEN: Final = "written"
REJECTED: Final = "rejected"
DEFERRED: Final = "deferred"
FAILED: Final = "failed"

# One row per source partition, and one per task (topic is null) with its counters.
_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("status", pa.string()),
        ("next_offset", pa.int64()),
        ("rows", pa.int64()),
        ("skipped", pa.int64()),
        ("reason", pa.string()),
        ("transactions", pa.int64()),
        ("bytes", pa.int64()),
        ("produce_ms", pa.float64()),
        ("flush_ms", pa.float64()),
        ("offsets_ms", pa.float64()),
        ("commit_ms", pa.float64()),
    ]
)
REPORT_DDL: Final = (
    "topic string, partition int, status string, next_offset long, rows long, skipped long, "
    "reason string, transactions long, bytes long, produce_ms double, flush_ms double, "
    "offsets_ms double, commit_ms double"
)


@dataclass
class Counters:
    """What a task did; times in milliseconds."""

    transactions: int = 0
    bytes: int = 0
    produce_ms: float = 0.0
    flush_ms: float = 0.0
    offsets_ms: float = 0.0
    commit_ms: float = 0.0


@dataclass
class PartitionOutcome:
    """What a task made of one source partition.

    Attributes:
        status: written; rejected (a later round may write it); deferred (only a later round
            may); failed (it can't be written).
        next_offset: offset after the last row committed; None if no row was.
        rows: rows committed.
        skipped: rows below the committed offset, written already by an earlier attempt.
        reason: why the partition is not written.
    """

    status: str = WRITTEN
    next_offset: int | None = None
    rows: int = 0
    skipped: int = 0
    reason: str | None = None


def report_batch(
    status: str,
    reason: str | None,
    counters: Counters,
    outcomes: Mapping[tuple[str, int], PartitionOutcome],
) -> pa.RecordBatch:
    """A task's report as an Arrow batch of `REPORT_DDL`."""
    rows: list[dict[str, Any]] = [{"status": status, "reason": reason, **asdict(counters)}]
    rows += [
        {"topic": topic, "partition": partition, **asdict(outcome)}
        for (topic, partition), outcome in outcomes.items()
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)


@dataclass
class JobOutcome:
    """What one Spark job, that is one round of a batch, made of its source partitions.

    Attributes:
        partitions: outcomes by (topic, partition).
        counters: sums over all tasks.
        reason: the first reason for which rows were not written, or None.
        failed: whether the reason can't be cured by another round.
        deferred: whether a task was a retry or a speculative copy.
    """

    partitions: dict[tuple[str, int], PartitionOutcome] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    reason: str | None = None
    failed: bool = False
    deferred: bool = False

    @property
    def unwritten(self) -> list[tuple[str, int]]:
        """Source partitions that need another round."""
        return sorted(p for p, o in self.partitions.items() if o.status != WRITTEN)


def job_outcome(rows: Iterable[Mapping[str, Any]]) -> JobOutcome:
    """Adds the reports of a job's tasks up."""
    job = JobOutcome()
    for row in rows:
        if row["status"] == DEFERRED:
            job.deferred = True
        if row["reason"] is not None and (job.reason is None or row["status"] == FAILED):
            job.reason = row["reason"]
        if row["status"] == FAILED:
            job.failed = True
        if row["topic"] is None:
            for name in asdict(job.counters):
                setattr(job.counters, name, getattr(job.counters, name) + row[name])
            continue
        outcome = PartitionOutcome(
            row["status"], row["next_offset"], row["rows"], row["skipped"], row["reason"]
        )
        known = job.partitions.setdefault((row["topic"], row["partition"]), outcome)
        if known is not outcome:
            # Two tasks saw rows of one partition: the rows of one of them must not be taken for
            # written because of the other's offset.
            job.failed = True
            job.reason = (
                f"two tasks hold rows of source {row['topic']}-{row['partition']}: between "
                "sink.read and sink.write rows must stay in their source partition"
            )
    return job


@dataclass(frozen=True)
class PartitionReport:
    """One source partition's part in a batch.

    Attributes:
        topic: source topic.
        partition: source partition.
        start: first offset of the batch; None if the partition is new.
        end: offset after the last one of the batch; the group has committed it.
        rows_written: output rows committed.
        rows_skipped: output rows that an earlier attempt had committed.
        member_epoch: the epoch of the member that committed; None if none is assigned any more.
    """

    topic: str
    partition: int
    start: int | None
    end: int
    rows_written: int
    rows_skipped: int
    member_epoch: int | None


@dataclass(frozen=True)
class BatchReport:
    """What became of one micro-batch; given to ``on_batch`` once everything is committed.

    Attributes:
        group_id: the consumer group.
        query_run: Spark's id of the query's run, or "".
        batch_id: Spark's number of the batch.
        rows_written: output rows committed.
        rows_skipped: output rows that an earlier attempt had committed.
        bytes_written: bytes of keys, values and headers handed to the producers.
        transactions: transactions committed.
        rounds: Spark jobs that were needed; 1 unless something was retried.
        offset_commit_version: version of TxnOffsetCommit that was sent.
        partitions: one `PartitionReport` per source partition.
        milliseconds: time by step: ``range``, ``start`` (of a run), ``plan``, ``job``,
            ``fence``, ``settle`` and ``total`` as the driver saw them; ``produce``, ``flush``,
            ``offsets`` and ``commit`` summed over the tasks.
    """

    group_id: str
    query_run: str
    batch_id: int
    rows_written: int
    rows_skipped: int
    bytes_written: int
    transactions: int
    rounds: int
    offset_commit_version: int
    partitions: tuple[PartitionReport, ...]
    milliseconds: Mapping[str, float]

    def __str__(self) -> str:
        skipped = f", {self.rows_skipped} skipped" if self.rows_skipped else ""
        rounds = f", {self.rounds} rounds" if self.rounds > 1 else ""
        return (
            f"group {self.group_id} batch {self.batch_id}: {self.rows_written} rows written"
            f"{skipped}, {self.transactions} transactions, "
            f"{len(self.partitions)} source partitions{rounds}, "
            f"{self.milliseconds.get('total', 0):.0f} ms"
        )
