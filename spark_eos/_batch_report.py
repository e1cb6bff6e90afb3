"""The report of one micro-batch, for the log and for the user."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from spark_eos._client.printable import printable
from spark_eos._client.tables import FittingTable, Value, as_html
from spark_eos._worker.plan import BatchPlan, BatchRange
from spark_eos._worker.sources import Sources
from spark_eos._worker.task_report import JobOutcome, dead_letters_of
from spark_eos._worker.writer_settings import WriterSettings

# Steps of tasks; their times are summed over all tasks of the batch.
TASK_STEPS: Final = ("wait", "produce", "flush", "offsets", "commit")

# A batch may have thousands of source partitions; a notebook shows this many.
_SHOWN: Final = 20

# The fields in a report's text; JSON logs have all fields.
_IN_TEXT: Final = (
    "event",
    "group_id",
    "batch_id",
    "delivery",
    "rows_written",
    "rows_skipped",
    "dead_letters",
    "timestamps_adjusted",
    "transactions",
    "source_partitions",
    "attempts",
    "total_ms",
)


@dataclass(frozen=True)
class LostRecords:
    """Offsets of a source partition whose records were deleted before they could be written.

    Reported in `BatchReport.lost` with ``fail_on_data_loss=False``.

    Attributes:
        topic: Source topic.
        partition: Source partition.
        first: The first offset that was not written.
        after: The offset after the last deleted one.
        certain: Whether the records were deleted before the batch was read. If False, they may have
            been deleted while the batch was read, so that some of them may be written. Or they were
            deleted before a staged batch was repeated: it is written from its copy, but the records
            are missing from the query's state.

    Examples:
        >>> str(LostRecords("orders", 0, 5, 7))
        'orders-0 offsets 5 to 6'
    """

    topic: str
    partition: int
    first: int
    after: int
    certain: bool = True

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.first} to {self.after - 1}"


@dataclass(frozen=True)
class PartitionReport:
    """One source partition's part in a batch.

    Attributes:
        topic: Source topic.
        partition: Source partition.
        start: First offset of the batch; None if the partition is new.
        end: Offset after the batch's last one; the group has committed it.
        rows_written: Output rows committed.
        rows_skipped: Output rows that an earlier attempt had already committed.
        member_epoch: Member epoch of the member that committed; None if the partition is no longer
            assigned.
        dead_letters: Rows committed as dead letters; they are not among ``rows_written``.

    Examples:
        >>> part = PartitionReport("orders", 0, 120, 150, 30, 0, member_epoch=4)
        >>> part.end - part.start
        30
    """

    topic: str
    partition: int
    start: int | None
    end: int
    rows_written: int
    rows_skipped: int
    member_epoch: int | None
    dead_letters: int = 0


@dataclass(frozen=True)
class BatchReport:
    """The report of one micro-batch; passed to ``on_batch`` once everything is committed.

    A notebook shows it as tables.

    Attributes:
        group_id: The consumer group.
        query_id: Spark's id of the query, the same across restarts from its checkpoint.
        query_run: Spark's id of the query's run, or "".
        batch_id: Spark's number of the batch.
        rows_written: Output rows committed.
        rows_skipped: Output rows that an earlier attempt had already committed.
        bytes_written: Bytes of the rows passed to the producers, as Arrow holds them.
        transactions: Transactions committed.
        attempts: Spark jobs needed: 1 unless something was retried, or 0 if a staged batch has no
            rows to write.
        offset_commit_version: Version of TxnOffsetCommit that the tasks sent, or the lower version
            if they sent both. If they sent none, the version that the cluster supported at the
            start.
        partitions: One `PartitionReport` per source partition.
        milliseconds: Time by step: ``range``, ``start`` (of a run), ``stage`` (of a staged batch),
            ``plan``, ``job``, ``fence``, ``commit_end`` and ``total`` as measured by the driver;
            ``wait`` (for the source and the query's own functions), ``produce``, ``flush``,
            ``offsets`` and ``commit`` summed over the tasks.
        lost: Source records that were deleted before they were read, so they are not written; only
            with ``fail_on_data_loss=False``.
        delivery: The delivery of the rows: ``direct``, ``mirrored`` or ``staged``. In a staged
            batch, ``partitions`` are the progress partitions.
        dead_letters: Number of rows committed as dead letters, by reason: ``error``,
            ``exception``, ``too_large``, ``unknown_topic``, ``unknown_partition``,
            ``invalid_header`` or ``invalid_record``. They are not among ``rows_written``.
        timestamps_adjusted: Number of records that were written with a
            timestamp of 1970-01-01T00:00:00.001Z instead of 1970-01-01T00:00:00Z.

    Examples:
        >>> report = BatchReport(
        ...     group_id="order-processors",
        ...     query_id="5d2f",
        ...     query_run="91ab",
        ...     batch_id=7,
        ...     rows_written=30,
        ...     rows_skipped=0,
        ...     bytes_written=2_048,
        ...     transactions=1,
        ...     attempts=1,
        ...     offset_commit_version=6,
        ...     partitions=(PartitionReport("orders", 0, 120, 150, 30, 0, member_epoch=4),),
        ...     milliseconds={"total": 180.0},
        ... )
        >>> print(report)  # doctest: +ELLIPSIS
        event=batch group_id=order-processors batch_id=7 delivery=direct ... total_ms=180.0
        >>> report.fields()["total_ms"]
        180.0
    """

    group_id: str
    query_id: str
    query_run: str
    batch_id: int
    rows_written: int
    rows_skipped: int
    bytes_written: int
    transactions: int
    attempts: int
    offset_commit_version: int
    partitions: tuple[PartitionReport, ...]
    milliseconds: Mapping[str, float]
    lost: tuple[LostRecords, ...] = ()
    delivery: str = "direct"
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    timestamps_adjusted: int = 0

    def __str__(self) -> str:
        fields = self.fields()
        if not self.dead_letters:
            del fields["dead_letters"]
        if not self.timestamps_adjusted:
            del fields["timestamps_adjusted"]
        return key_values({name: fields[name] for name in _IN_TEXT if name in fields})

    def __rich__(self) -> Group:
        title = printable(f"Batch {self.batch_id} of group {self.group_id}")
        parts: list[RenderableType] = [Text(title, style="bold"), self._counts()]
        if self.dead_letters:
            reasons = sorted(self.dead_letters.items())
            parts.append(FittingTable("dead letters", "rows>", rows=reasons))
        if self.timestamps_adjusted:
            moved = f"{self.timestamps_adjusted:,}"
            parts.append(Text(f"Records of 1970-01-01T00:00:00Z written as 1 ms later: {moved}"))
        parts.append(Text("Milliseconds; produce, flush, offsets, commit are summed over tasks:"))
        times = [f"{spent:,.1f}" for spent in self.milliseconds.values()]
        parts.append(FittingTable(*(f"{step}>" for step in self.milliseconds), rows=[times]))
        if self.lost:
            lost = [
                (records.topic, records.partition, records.first, records.after - records.first)
                for records in self.lost
            ]
            parts.append(Text("Deleted before they were read:"))
            columns = ("topic", "partition>", "first offset>", "offsets>")
            parts.append(FittingTable(*columns, rows=lost))
        parts.append(self._sources())
        if len(self.partitions) > _SHOWN:
            parts.append(Text(f"and {len(self.partitions) - _SHOWN:,} more source partitions"))
        return Group(*parts)

    def _counts(self) -> FittingTable:
        counts: dict[str, Value] = {
            "delivery": self.delivery,
            "rows written>": self.rows_written,
            "rows skipped>": self.rows_skipped,
            "dead letters>": sum(self.dead_letters.values()),
            "bytes written>": self.bytes_written,
            "transactions>": self.transactions,
            "attempts>": self.attempts,
        }
        return FittingTable(*counts, rows=[[*counts.values()]])

    def _sources(self) -> FittingTable:
        columns = ("topic", "partition>", "start>", "end>", "written>", "skipped>", "dead letters>")
        rows = [
            (p.topic, p.partition, p.start, p.end, p.rows_written, p.rows_skipped, p.dead_letters)
            for p in self.partitions[:_SHOWN]
        ]
        return FittingTable(*columns, rows=rows)

    def _repr_html_(self) -> str:
        return as_html(self)

    def fields(self) -> dict[str, Any]:
        """Return the report as flat fields for a log record; each step's time is ``<step>_ms``.

        Offsets are left out, because a batch may have thousands of source partitions.
        """
        return {
            "event": "batch",
            "group_id": self.group_id,
            "query_id": self.query_id,
            "query_run": self.query_run,
            "batch_id": self.batch_id,
            "delivery": self.delivery,
            "rows_written": self.rows_written,
            "rows_skipped": self.rows_skipped,
            "dead_letters": sum(self.dead_letters.values()),
            "timestamps_adjusted": self.timestamps_adjusted,
            "bytes_written": self.bytes_written,
            "transactions": self.transactions,
            "source_partitions": len(self.partitions),
            "attempts": self.attempts,
            "offset_commit_version": self.offset_commit_version,
            "offsets_lost": sum(lost.after - lost.first for lost in self.lost),
            **{f"{step}_ms": round(spent, 1) for step, spent in self.milliseconds.items()},
        }


def batch_report(
    settings: WriterSettings,
    query_id: str,
    query_run: str,
    cluster_version: int,
    batch: BatchRange,
    sources: Sources,
    outcomes: Sequence[JobOutcome],
    plan: BatchPlan,
    milliseconds: Mapping[str, float],
    lost: tuple[LostRecords, ...] = (),
    delivery: str = "direct",
) -> BatchReport:
    """Add up a batch's attempts; ``cluster_version`` is the cluster's TxnOffsetCommit version."""
    parts = {p: [o.partitions[p] for o in outcomes if p in o.partitions] for p in batch.ends}
    partitions = tuple(
        PartitionReport(
            *sources.source(partition),
            start=batch.starts.get(partition),
            end=end,
            rows_written=sum(part.rows for part in parts[partition]),
            rows_skipped=sum(part.skipped for part in parts[partition]),
            member_epoch=plan.member.epoch if partition in plan.partitions else None,
            dead_letters=sum(part.dead_letters for part in parts[partition]),
        )
        for partition, end in sorted(batch.ends.items(), key=lambda item: sources.source(item[0]))
    )
    versions = (o.counters.offset_commit_version for o in outcomes)
    sent = [version for version in versions if version is not None]
    in_tasks = {
        name: sum(getattr(o.counters, f"{name}_ms") for o in outcomes) for name in TASK_STEPS
    }
    return BatchReport(
        group_id=settings.group_id,
        query_id=query_id,
        query_run=query_run,
        batch_id=batch.batch_id,
        rows_written=sum(p.rows_written for p in partitions),
        rows_skipped=sum(p.rows_skipped for p in partitions),
        bytes_written=sum(o.counters.bytes for o in outcomes),
        transactions=sum(o.counters.transactions for o in outcomes),
        attempts=len(outcomes),
        offset_commit_version=min(sent, default=cluster_version),
        partitions=partitions,
        milliseconds={**milliseconds, **in_tasks},
        lost=lost,
        delivery=delivery,
        dead_letters=dead_letters_of(outcomes).reasons,
        timestamps_adjusted=sum(o.counters.timestamps_adjusted for o in outcomes),
    )


def key_values(fields: Mapping[str, object]) -> str:
    """Format fields as logfmt: ``key=value`` separated by spaces, values quoted if necessary."""
    return " ".join(f"{name}={_quoted(str(value))}" for name, value in fields.items())


def _quoted(text: str) -> str:
    safe = text.isprintable() and not any(character in text for character in ' "=')
    return text if text and safe else json.dumps(text)
