"""One Spark task: writes the rows of its source partitions in transactions."""

# This module runs in Spark's Python workers, inside mapInArrow. It imports nothing from the
# driver's side.

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark import TaskContext

from spark_eos._exactly_once.transaction import TransactionWriter
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker import task_report
from spark_eos._worker.arrivals import arrivals
from spark_eos._worker.arrow_columns import writable_batches
from spark_eos._worker.dead_letter_settings import DeadLetterTally
from spark_eos._worker.dead_letters import rows_with_error
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.plan import BatchPlan, Shared
from spark_eos._worker.producer import TransactionalProducer
from spark_eos._worker.records import SourceRows, source_rows
from spark_eos._worker.sources import Sources
from spark_eos._worker.spark_connection import SparkConnection, reduce_task_overhead
from spark_eos._worker.task_report import Counters, PartitionOutcome, report_batch
from spark_eos._worker.transaction_size import FULL, TransactionSize
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.errors import text_of

logger = logging.getLogger(__name__)

Arrange = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# A worker process keeps the producers of its latest queries from task to task. The key includes the
# process id, because a forked process must not share its parent's connections.
_producers: dict[tuple[int, str, str], TransactionalProducer] = {}
_MAX_PRODUCERS = 4
# While a task waits for rows, it checks _CHECKS times per transactions.max_ms, but at most once per
# _MIN_SECONDS, whether the open transaction must end.
_CHECKS = 10
_MIN_SECONDS = 0.02


def worker_producer(settings: WriterSettings) -> TransactionalProducer:
    """Return this process's producer for the query; replace it if its settings have changed."""
    key = (os.getpid(), settings.transactions.id_prefix, settings.group_id)
    producer = _producers.pop(key, None)
    if producer is not None and producer.settings != settings:
        producer.close()
        producer = None
    _producers[key] = producer or TransactionalProducer(settings)
    while len(_producers) > _MAX_PRODUCERS:
        _producers.pop(next(iter(_producers))).close()
    return _producers[key]


def write_task(
    settings: WriterSettings,
    plan: BatchPlan,
    *,
    size: TransactionSize = FULL,
    sources: Sources = Sources(),
    discard_producer: bool = False,
    arrange: Arrange = writable_batches,
) -> Arrange:
    """Return the function that ``mapInArrow`` runs for every Spark partition."""
    shared = replace(plan, partitions=Shared(plan.partitions))
    sources = Sources(Shared(sources.by_partition))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is not None:
            reduce_task_overhead()
            batches = SparkConnection.of_worker().whole(batches)
        if context is not None and context.attemptNumber() > 0:
            yield _deferred(arrange(batches), sources)
        else:
            producer = worker_producer(settings)
            if discard_producer:
                producer.drop()
            writer = _TaskWriter(settings, shared, size, sources, producer)
            yield writer.write(arrange(batches))

    return run


def _deferred(batches: Iterator[pa.RecordBatch], sources: Sources) -> pa.RecordBatch:
    # This task attempt is a retry or a speculative copy, and an earlier attempt may still be
    # running. So the driver must first fence, and then decide which attempt writes. Report even if
    # there are no rows, because the report makes the driver fence.
    reason = "a repeated attempt of a Spark task leaves the decision to the driver"
    outcomes: dict[TopicPartition, PartitionOutcome] = {}
    for batch in batches:
        for arrived in source_rows(batch, sources):
            deferred = PartitionOutcome(task_report.RETRIED, reason=reason)
            outcomes.setdefault(arrived.partition, deferred)
    return report_batch(task_report.RETRIED, reason, Counters(), outcomes)


class _TaskWriter:
    def __init__(
        self,
        settings: WriterSettings,
        plan: BatchPlan,
        size: TransactionSize,
        sources: Sources,
        producer: TransactionalProducer,
    ) -> None:
        self._settings = settings
        self._plan = plan.partitions
        self._sources = sources
        self._transactions = TransactionWriter(producer, settings, plan, size)
        self._outcomes: dict[TopicPartition, PartitionOutcome] = {}
        self._pending: dict[TopicPartition, int] = {}
        self._seen: dict[TopicPartition, int] = {}
        self._last_partition: TopicPartition | None = None
        # The rows of an Arrow batch's last source record. They are held back until the next record
        # arrives, so that a transaction can end between two Arrow batches without splitting a
        # record.
        self._held: SourceRows | None = None
        self._status = task_report.WRITTEN
        self._reason: str | None = None
        # Committed dead letters, and the dead letters that were left out because they exceeded the
        # limit.
        self._dead = DeadLetterTally()
        self._dead_over_limit = DeadLetterTally()
        # How many dead letters are allowed for the partitions seen so far.
        self._dead_letters_allowed = 0
        self._left_out_others = False

    def write(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        try:
            every = max(_MIN_SECONDS, self._transactions.limits.max_ms / 1000 / _CHECKS)
            for batch in arrivals(batches, self._is_due, self._commit, every, self._note_wait):
                found = [*self._source_rows(batch)]
                for arrived in found:
                    for part in self._to_write(arrived, is_last=arrived is found[-1]):
                        self._write_part(part)
            for part in self._held_parts():
                self._write_part(part)
            if self._transactions.open:
                self._commit()
        except BaseException:
            self._transactions.abort()
            raise
        finally:
            self._transactions.close()
        return report_batch(
            self._status,
            self._reason,
            self._transactions.counters,
            self._outcomes,
            self._dead,
            self._dead_over_limit,
            left_out_others=self._left_out_others,
        )

    def _note_wait(self, seconds: float) -> None:
        self._transactions.counters.wait_ms += seconds * 1000

    def _is_due(self) -> bool:
        """Return True if the open transaction must end now, without waiting for more rows."""
        held = self._held
        return self._transactions.full and not (held is not None and self._goes_on(held))

    def _source_rows(self, batch: pa.RecordBatch) -> Iterator[SourceRows]:
        try:
            yield from source_rows(batch, self._sources)
        except TransactionError as error:
            self._stop(task_report.FAILED, str(error))

    def _to_write(self, arrived: SourceRows, *, is_last: bool) -> Iterator[SourceRows]:
        """Yield the rows to write now, held rows first; record why other rows are not written.

        ``is_last``: no other rows follow in the same Arrow batch.
        """
        # The caller writes the rows that are yielded before it asks for more.
        yield from self._held_parts()
        partition = arrived.partition
        outcome = self._outcomes.setdefault(partition, PartitionOutcome())
        # Check the order even after a failure: rows with higher offsets may already be committed.
        if not self._note_order(arrived):
            self._report_out_of_order(arrived)
            return
        plan = self._plan.get(partition)
        if self._status != task_report.WRITTEN:
            self._leave_out(outcome)
            self._count_left_out(arrived.at_or_above(plan.committed if plan else 0))
            return
        if plan is None:
            outcome.status = task_report.REJECTED
            outcome.reason = f"no member of the group is assigned {self._sources.name(partition)}"
            return
        if arrived.first_offset < plan.start or arrived.last_offset >= plan.end:
            self._stop(
                task_report.FAILED,
                f"source {arrived.source} has rows of offsets {arrived.first_offset} to "
                f"{arrived.last_offset}, but the batch goes from {plan.start} to {plan.end - 1}: "
                "the `source` column must come from sink.read, and no other query may use the "
                "checkpoint",
            )
            self._leave_out(outcome)
            return
        fresh = arrived.at_or_above(plan.committed)
        outcome.skipped += arrived.rows.num_rows - fresh.rows.num_rows
        if fresh.rows.num_rows:
            # Rows that rows of another partition follow are complete.
            whole, self._held = fresh.before_last_record() if is_last else (fresh, None)
            yield from self._slices(whole)

    def _held_parts(self) -> Iterator[SourceRows]:
        held, self._held = self._held, None
        if held is not None:
            yield from self._slices(held)

    def _slices(self, rows: SourceRows) -> Iterator[SourceRows]:
        transactions = self._transactions
        return rows.slices(lambda: transactions.room, lambda: transactions.limits.max_bytes)

    def _write_part(self, part: SourceRows) -> None:
        transactions = self._transactions
        try:
            if (
                self._status == task_report.WRITTEN
                and transactions.open
                and not self._goes_on(part)
                and (transactions.full or not transactions.ready(part))
            ):
                self._commit()
            if self._status == task_report.WRITTEN:
                transactions.add(part, self._dead_letters_allowed - self._dead.total)
                rows = self._pending.get(part.partition, 0) + part.rows.num_rows
                self._pending[part.partition] = rows
                self._check_dead_letters()
            else:
                self._count_left_out(part)
        except Exception as error:  # noqa: BLE001 - Spark's retry would hide it
            self._fail(error, part.positions)
        if self._status != task_report.WRITTEN:
            self._leave_out(self._outcomes[part.partition])

    def _goes_on(self, part: SourceRows) -> bool:
        """Return True if the open transaction already holds rows of the same source record."""
        # All rows of a source record belong in one transaction, which commits the record's offset.
        offset = self._transactions.offsets.get(part.partition)
        return self._transactions.open and offset == part.first_offset + 1

    def _check_dead_letters(self, *, is_end: bool = False) -> None:
        """Stop the task if it has too many dead letters; ``is_end`` means the transaction ends."""
        letters = self._transactions.letters
        if not letters.counts.total:
            return
        wanted, allowed = self._dead.total + letters.counts.total, self._dead_letters_allowed
        if wanted > allowed:
            self._stop_over_limit(f"{wanted} dead letters are more than this attempt's {allowed}")
            return
        if not is_end or letters.counts.total < sum(self._pending.values()):
            return
        deferred = any(self._plan[partition].defer_dead_letters for partition in self._pending)
        dead = DeadLetterTally()
        dead.include(self._dead)
        dead.include(letters.counts)
        written = any(outcome.rows for outcome in self._outcomes.values())
        if deferred and dead.is_one_error and not written:
            self._stop_over_limit(f"all {dead.total} rows so far are dead letters with one error")

    def _count_left_out(self, part: SourceRows) -> None:
        """Once the limit is exceeded, count the left-out rows that are known to be dead letters."""
        if self._status != task_report.NOT_ATTEMPTED:
            return
        dead, faults = self._dead_over_limit, rows_with_error(part)
        for row, fault in faults.items():
            first = fault.reason not in dead.first
            dead.add(fault.reason, part.position(row) if first else "", fault.message)
        if len(faults) < part.rows.num_rows:
            self._left_out_others = True

    def _stop_over_limit(self, reason: str) -> None:
        letters = self._transactions.letters
        self._dead_over_limit = letters.counts
        self._left_out_others = letters.counts.total < sum(self._pending.values())
        wanting = [self._outcomes[partition] for partition in letters.by_partition]
        self._stop(task_report.NOT_ATTEMPTED, reason)
        for outcome in wanting:
            outcome.status, outcome.reason = task_report.OVER_LIMIT, reason

    def _commit(self) -> None:
        self._check_dead_letters(is_end=True)
        if self._status != task_report.WRITTEN:
            return
        offsets = dict(self._transactions.offsets)
        try:
            self._transactions.commit()
        except Exception as error:  # noqa: BLE001 - reported, as above
            self._fail(error, "the end of a transaction")
            return
        letters = self._transactions.letters
        for partition, rows in self._pending.items():
            outcome, dead = self._outcomes[partition], letters.by_partition.get(partition, 0)
            outcome.rows += rows - dead
            outcome.dead_letters += dead
            outcome.next_offset = offsets[partition]
        self._dead.include(letters.counts)
        letters.begin()
        self._pending.clear()

    def _fail(self, error: Exception, where: str) -> None:
        if isinstance(error, TransactionError):
            unwritten = task_report.REJECTED
            if error.too_slow:
                grown = self._transactions.grown
                unwritten = task_report.OUTGROWN if grown else task_report.TOO_SLOW
            self._stop(unwritten if error.again else task_report.FAILED, str(error))
            return
        logger.error("%s", where, exc_info=error)
        self._stop(task_report.FAILED, f"{where}: {type(error).__name__}: {text_of(error)}")

    def _stop(self, status: str, reason: str) -> None:
        self._transactions.abort()
        self._status, self._reason = status, reason
        for partition in self._pending:
            self._leave_out(self._outcomes[partition])
        self._pending.clear()

    def _note_order(self, arrived: SourceRows) -> bool:
        """Note the rows' offsets; return False if the rows arrive out of offset order."""
        partition = arrived.partition
        seen = self._seen.get(partition, -1)
        follows = partition == self._last_partition
        self._last_partition = partition
        if not arrived.in_order or arrived.first_offset < seen:
            return False
        if arrived.first_offset == seen and not follows:
            return False
        if partition not in self._seen and (plan := self._plan.get(partition)) is not None:
            self._dead_letters_allowed += plan.max_dead_letters
        self._seen[partition] = arrived.last_offset
        return True

    def _report_out_of_order(self, arrived: SourceRows) -> None:
        """Report that the partition may lack rows below its committed offset."""
        if self._status == task_report.WRITTEN:
            after = self._seen.get(arrived.partition)
            what = "are not in offset order" if after is None else f"come after offset {after}"
            self._stop(
                task_report.FAILED,
                f"rows of source {arrived.source} from offset {arrived.first_offset} "
                f"on {what}: the order of rows must not change between sink.read and sink.write",
            )
        outcome = self._outcomes[arrived.partition]
        outcome.status, outcome.reason = task_report.OUT_OF_ORDER, self._reason

    def _leave_out(self, outcome: PartitionOutcome) -> None:
        if outcome.status not in (task_report.OUT_OF_ORDER, task_report.OVER_LIMIT):
            outcome.status, outcome.reason = self._status, self._reason
