"""The reports of tasks to the driver."""

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa

from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.dead_letter_settings import DeadLetterTally
from spark_eos._worker.sources import Sources

WRITTEN: Final = "written"
# A later attempt may write the partition.
REJECTED: Final = "rejected"
# A later attempt may write the partition in smaller transactions.
TOO_SLOW: Final = "too slow"
# The same, but the task's transactions had grown: they may succeed at the size they began with.
OUTGROWN: Final = "outgrown"
# More dead letters than this attempt allows, or deferred: see `PartitionPlan.defer_dead_letters`.
OVER_LIMIT: Final = "over limit"
# The task stopped earlier, at a partition that is over the limit.
NOT_ATTEMPTED: Final = "not attempted"
# A repeated Spark task leaves the partition to a later attempt.
RETRIED: Final = "retried"
FAILED: Final = "failed"
OUT_OF_ORDER: Final = "out of order"

# Each task reports one row with one column. With eighteen columns, one for each field, Spark plans
# and runs a small job 10 % slower.
REPORT: Final = "report"
_SCHEMA: Final = pa.schema([(REPORT, pa.string())])


@dataclass
class Counters:
    """A task's counts and times, and the lowest TxnOffsetCommit version that was answered."""

    transactions: int = 0
    bytes: int = 0
    timestamps_adjusted: int = 0
    # Rows older than their topic's retention.ms, by topic.
    past_retention: dict[str, int] = field(default_factory=dict)
    offset_commit_version: int | None = None
    wait_ms: float = 0.0
    produce_ms: float = 0.0
    flush_ms: float = 0.0
    offsets_ms: float = 0.0
    commit_ms: float = 0.0

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add a block's time to one of the fields in milliseconds."""
        began = time.monotonic()
        yield
        setattr(self, step, getattr(self, step) + (time.monotonic() - began) * 1000)

    def offsets_answered(self, version: int) -> None:
        """Note the version of an answered TxnOffsetCommit."""
        self.offset_commit_version = min(version, self.offset_commit_version or version)

    def add_past_retention(self, rows: Mapping[str, int]) -> None:
        """Add rows that are older than their topic's retention, by topic."""
        for topic, number in rows.items():
            self.past_retention[topic] = self.past_retention.get(topic, 0) + number


@dataclass
class PartitionOutcome:
    """A task's result for one of the group's partitions."""

    status: str = WRITTEN
    # The offset after the last committed row; None if no row was committed.
    next_offset: int | None = None
    # Committed rows, without dead letters.
    rows: int = 0
    # Rows below the committed offset, which an earlier attempt has written.
    skipped: int = 0
    reason: str | None = None
    # Committed dead letters.
    dead_letters: int = 0


def report_batch(
    status: str,
    reason: str | None,
    counters: Counters,
    outcomes: Mapping[TopicPartition, PartitionOutcome],
    dead: DeadLetterTally | None = None,
    dead_over_limit: DeadLetterTally | None = None,
    *,
    left_out_others: bool = False,
) -> pa.RecordBatch:
    """Return a task's report as a batch of one row: JSON of the task and of each partition."""
    task: dict[str, Any] = {"status": status, "reason": reason, **asdict(counters)}
    task["left_out_others"] = left_out_others
    for name, tally in (("dead", dead), ("dead_over_limit", dead_over_limit)):
        task[name] = asdict(tally) if tally is not None and tally.total else None
    rows: list[dict[str, Any]] = [task]
    rows += [
        {"topic": topic, "partition": partition, **asdict(outcome)}
        for (topic, partition), outcome in outcomes.items()
    ]
    return pa.RecordBatch.from_pydict({"report": [json.dumps(rows)]}, schema=_SCHEMA)


@dataclass
class JobOutcome:
    """The result of one attempt of a batch, for each of the group's partitions."""

    partitions: dict[TopicPartition, PartitionOutcome] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    reason: str | None = None
    # No further attempt can help.
    failed: bool = False
    # Some rows may be missing although later rows were written.
    out_of_order: set[TopicPartition] = field(default_factory=set)
    tasks: int = 0
    # A task was a retry or a speculative copy.
    retried: bool = False
    dead: DeadLetterTally = field(default_factory=DeadLetterTally)
    dead_over_limit: DeadLetterTally = field(default_factory=DeadLetterTally)
    # Rows that may be good were left out together with the dead letters over the limit.
    left_out_others: bool = False

    @property
    def unwritten(self) -> list[TopicPartition]:
        """The partitions that need another attempt."""
        return sorted(p for p, o in self.partitions.items() if o.status != WRITTEN)

    @property
    def too_slow(self) -> bool:
        """True if a transaction took too long, so that smaller ones may succeed."""
        return any(o.status in {TOO_SLOW, OUTGROWN} for o in self.partitions.values())

    @property
    def outgrown(self) -> bool:
        """True if transactions took too long only where they had grown."""
        statuses = {outcome.status for outcome in self.partitions.values()}
        return OUTGROWN in statuses and TOO_SLOW not in statuses

    @property
    def over_limit(self) -> bool:
        """True if the number of dead letters is the only reason that partitions are unwritten."""
        statuses = {outcome.status for outcome in self.partitions.values()} - {WRITTEN}
        return bool(statuses) and statuses <= {OVER_LIMIT, NOT_ATTEMPTED}

    @property
    def committed_anything(self) -> bool:
        """True if anything was committed."""
        return any(outcome.next_offset is not None for outcome in self.partitions.values())


def job_outcome(reports: Iterable[str], sources: Sources = Sources()) -> JobOutcome:
    """Add up the reports of a Spark job's tasks."""
    job = JobOutcome()
    for row in (row for report in reports for row in json.loads(report)):
        if row["status"] == RETRIED:
            job.retried = True
        if row["reason"] is not None and (job.reason is None or row["status"] == FAILED):
            job.reason = row["reason"]
        if row["status"] == FAILED:
            job.failed = True
        if "topic" not in row:
            _add_task(job, row)
            continue
        partition = TopicPartition(row.pop("topic"), row.pop("partition"))
        outcome = PartitionOutcome(**row)
        known = job.partitions.setdefault(partition, outcome)
        if outcome.status == OUT_OF_ORDER:
            job.out_of_order.add(partition)
        if known is not outcome:
            # Two tasks got rows of one partition: one task's offset must not make the other task's
            # rows count as written.
            job.failed = True
            job.out_of_order.add(partition)
            # The group's committed offset is that of the task that committed last.
            known.next_offset = max(known.next_offset or 0, outcome.next_offset or 0) or None
            job.reason = (
                f"two tasks hold rows of source {sources.source(partition)}: between "
                "sink.read and sink.write, rows must stay in their source partition"
            )
    return job


def _add_task(job: JobOutcome, row: Mapping[str, Any]) -> None:
    job.tasks += 1
    if (version := row["offset_commit_version"]) is not None:
        job.counters.offsets_answered(version)
    job.counters.add_past_retention(row["past_retention"])
    for name in asdict(job.counters).keys() - {"offset_commit_version", "past_retention"}:
        setattr(job.counters, name, getattr(job.counters, name) + row[name])
    job.left_out_others |= row["left_out_others"]
    for name in ("dead", "dead_over_limit"):
        if row[name] is not None:
            getattr(job, name).include(DeadLetterTally(**row[name]))


def dead_letters_of(outcomes: Iterable[JobOutcome]) -> DeadLetterTally:
    """Return the committed dead letters of all attempts of a batch."""
    tally = DeadLetterTally()
    for outcome in outcomes:
        tally.include(outcome.dead)
    return tally
