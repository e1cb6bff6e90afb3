"""One worker's transactions: rows and their source offsets, committed together.

The steps of a commit: flush the records; send each member's source offsets in a TxnOffsetCommit;
commit the transaction only if every answer accepts every partition.
"""

import contextlib
import enum
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from spark_eos.acls import query_acls
from spark_eos.batch.plan import BatchPlan
from spark_eos.batch.task_report import Counters
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.client.error_codes import Verdict, remedy
from spark_eos.errors import SparkEosError
from spark_eos.kafka.deadline import Deadline
from spark_eos.kafka.offsets import in_requests
from spark_eos.kafka.topic_cache import source_topics
from spark_eos.kafka.transactions import (
    BY_ID,
    MemberIdentity,
    OffsetCommitAnswer,
    txn_offset_commit,
)
from spark_eos.worker.letter_maker import LetterMaker
from spark_eos.worker.librdkafka_errors import TransactionError
from spark_eos.worker.producer import TransactionalProducer
from spark_eos.worker.records import SourceRows, target_topics
from spark_eos.worker.refusals import Refusals
from spark_eos.worker.refused_rows import RefusedRows
from spark_eos.worker.target_topics import TargetTopics, cluster_failure

Offsets = dict[tuple[str, int], int]

# Transactions shorter than 0.5 s skip the topic recheck, which takes some milliseconds: a topic
# can't be deleted, recreated and written that fast.
_LONG: Final = 0.5
# Seconds allowed for an answer however old the transaction is: the answer tells its outcome.
_LEAST_SECONDS: Final = 1.0
# Bytes that may wait for acknowledgement while the brokers' pace is unknown.
_BACKLOG_BYTES: Final = 4 << 20


class State(enum.Enum):
    """State of a worker's transaction."""

    NONE = "none"
    OPEN = "open"
    COMMITTING = "committing"


_NEXT = {
    State.NONE: {State.OPEN},
    State.OPEN: {State.COMMITTING, State.NONE},
    State.COMMITTING: {State.NONE},
}


class Transactions:
    """Writes one task's rows in transactions of bounded size.

    Args:
        producer: The worker's producer.
        settings: The writer's settings.
        plan: How to treat each source partition.

    Attributes:
        counters: What the transactions took, for the task's report.
        letters: The dead letters of the open transaction; None without a topic for them.
    """

    def __init__(
        self, producer: TransactionalProducer, settings: WriterSettings, plan: BatchPlan
    ) -> None:
        self._producer = producer
        self._settings = settings
        self._plan = plan
        self._state = State.NONE
        self._offsets: Offsets = {}
        self._firsts: Offsets = {}
        self._rows = 0
        self._bytes = 0
        self._began = 0.0
        self._targets = TargetTopics(
            producer.topics, settings.refuses_target, producer.absent_topics
        )
        refusals = Refusals(_compression(settings), producer.refused_sizes)
        self._refused_rows = RefusedRows(producer, settings, refusals)
        self.letters = (
            None
            if settings.dead_letters is None
            else LetterMaker(settings, settings.dead_letters, self._targets, refusals)
        )
        self.counters = Counters()

    def _become(self, state: State) -> None:
        if state not in _NEXT[self._state]:
            raise AssertionError(f"transaction can't go from {self._state} to {state}")
        self._state = state

    @property
    def open(self) -> bool:
        """Whether a transaction is open: it holds rows that are not committed."""
        return self._state is State.OPEN

    @property
    def offsets(self) -> Mapping[tuple[str, int], int]:
        """Next source offset by (topic, partition) that the open transaction would commit."""
        return self._offsets

    @property
    def full(self) -> bool:
        """Whether the open transaction has reached one of its limits."""
        settings = self._settings
        return self.open and (
            self._rows >= settings.max_transaction_records
            or self._bytes >= settings.max_transaction_bytes
            or self._age() * 1000 >= settings.max_transaction_ms
        )

    def _age(self) -> float:
        return time.monotonic() - self._began

    def add(self, found: SourceRows, *, wait: bool = True) -> None:
        """Adds rows to the open transaction, or begins one.

        Args:
            found: The rows.
            wait: Whether to wait for missing topics that may become dead letters' reason.

        Raises:
            TransactionError: They can't be written; the caller aborts.
            WaitAheadError: Topics are missing, and ``wait`` is False; nothing was added.
        """
        started = time.monotonic()
        if self.letters is None:
            self._add(found)
        else:
            if not wait:
                self.letters.check_without_waiting(
                    found, target_topics(found, self._settings.topic)
                )
            if not self.open:
                self._refused_rows.parts = []
            self._refused_rows.parts.append(found)
            self._without_refused(lambda: self._add(found), self._add_parts)
        self.counters.bytes += found.rows.nbytes
        self.counters.produce_ms += (time.monotonic() - started) * 1000

    def _add(self, found: SourceRows) -> None:
        topics = target_topics(found, self._settings.topic)
        faults = {} if self.letters is None else self.letters.judge(found, topics)
        targets = self._targets.look_up(found, topics)
        if not self.open:
            self._begin()
        self._targets.add(targets)
        self._firsts.setdefault((found.topic, found.partition), found.first_offset)
        self._offsets[found.topic, found.partition] = found.last_offset + 1
        self._rows += found.rows.num_rows
        self._bytes += found.rows.nbytes
        with self._in_time():
            records = self._producer.records
            letters = None
            if self.letters is not None:
                letters = self.letters.letters(found, faults, records.on_delivery(found))
            records.produce(found, topics, self._targets.check, letters)
            records.wait_while(self._has_backlog, self._targets.check)

    def _begin(self) -> None:
        self._producer.begin()
        self._become(State.OPEN)
        self._offsets, self._firsts, self._rows, self._bytes = {}, {}, 0, 0
        self._targets.clear()
        if self.letters is not None:
            self.letters.begin()
        self._began = time.monotonic()

    def _without_refused(self, action: Callable[[], None], again: Callable[[], None]) -> None:
        self._refused_rows.without(action, again, self._give_up)

    def _add_parts(self) -> None:
        for part in self._refused_rows.parts:
            self._add(part)

    def _give_up(self) -> None:
        if self._state is not State.NONE:
            self._become(State.NONE)
        self._producer.drop()

    def _progress(self, partition: tuple[str, int]) -> tuple[str, int]:
        """The partition whose offset in the group is the progress of a source partition."""
        return self._plan[partition].progress or partition

    def _topic_ids(self) -> dict[str, uuid.UUID]:
        return {self._progress(place)[0]: part.topic_id for place, part in self._plan.items()}

    def _check_sources(self, names: Collection[str]) -> None:
        """Checks that topics are still those whose offsets the plan commits.

        Raises:
            OffsetsLostError: One was recreated.
            TopicNotFoundError: One does not exist.
        """
        known = {topic: id_ for topic, id_ in self._topic_ids().items() if topic in names}
        source_topics(self._producer.topics, known, known, self._settings.group_id)

    def commit(self, check: Callable[[], None] | None = None) -> None:
        """Commits the open transaction: its rows and their source offsets, or neither.

        Args:
            check: Called when all dead letters are known, before anything is committed; what it
                raises is raised, and nothing is.

        Raises:
            TransactionError: It is not committed, or its outcome is unknown. The producer is
                fenced and closed.
        """
        self._become(State.COMMITTING)
        counters, clock = self.counters, time.monotonic
        try:
            # 1. Every record is acknowledged, none has failed.
            started = clock()
            if self.letters is None:
                self._flush()
            else:
                self._without_refused(self._flush, self._flush_again)
            if check is not None:
                check()
            flushed = clock()
            deadline = self._deadline()
            if flushed - self._began >= _LONG:
                # Rows in a topic that has been deleted must not count as written.
                self._targets.check()
            # 2. Send the source offsets, each partition's as the member it is assigned to.
            self._send_offsets(deadline)
            sent = clock()
            # 3. Only then commit.
            with self._in_time():
                self._producer.commit(deadline)
            counters.flush_ms += (flushed - started) * 1000
            counters.offsets_ms += (sent - flushed) * 1000
            counters.commit_ms += (clock() - sent) * 1000
        except BaseException:
            self._give_up()
            raise
        self._become(State.NONE)
        self._refused_rows.parts = []
        counters.transactions += 1
        if not self._producer.clean():
            self._producer.drop()

    def _flush(self) -> None:
        with self._in_time():
            before_abort = self._before_the_broker_aborts(self._deadline())
            self._producer.records.flush(before_abort, self._targets.check)

    def _flush_again(self) -> None:
        self._add_parts()
        self._become(State.COMMITTING)
        self._flush()

    def _deadline(self) -> Deadline:
        return Deadline(self._settings.transaction_timeout_ms / 1000, "transaction_timeout_ms")

    def _send_offsets(self, deadline: Deadline) -> None:
        by_member: dict[MemberIdentity, Offsets] = {}
        texts: dict[tuple[str, int], str] = {}
        for partition, offset in self._offsets.items():
            part, place = self._plan[partition], self._progress(partition)
            by_member.setdefault(part.member, {})[place] = offset
            texts[place] = part.metadata
        what = f"committing offsets of group {self._settings.group_id!r}"
        topic_ids = self._topic_ids()
        by_name = False
        requests = (
            (member, part)
            for member, offsets in by_member.items()
            for part in in_requests(offsets, texts)
        )
        try:
            for member, offsets in requests:
                answer = txn_offset_commit(
                    self._producer.wire,
                    self._settings.group_id,
                    self._producer.identity,
                    member,
                    offsets,
                    topic_ids,
                    self._before_the_broker_aborts(deadline),
                    lambda: self._producer.disturb("an answer to TxnOffsetCommit was lost"),
                    self._check_sources,
                    texts,
                )
                self.counters.count_offset_commit(answer.version)
                if answer.verdict is not Verdict.ACCEPTED:
                    raise self._refusal(what, member, answer)
                by_name |= answer.version < BY_ID
            if by_name:
                # Sent by name, the offsets may have reached a recreated topic. If a topic is
                # deleted after this check, the broker deletes its offsets too.
                self._check_sources({topic for topic, _ in map(self._progress, self._offsets)})
        except SparkEosError as error:
            raise cluster_failure(what, error) from error

    def _before_the_broker_aborts(self, deadline: Deadline) -> Deadline:
        # Later codes would be those of an aborted transaction and hide the cause.
        left = max(_LEAST_SECONDS, self._settings.transaction_timeout_ms / 1000 - self._age())
        return Deadline(min(left, deadline.remaining()), deadline.setting)

    # Time -------------------------------------------------------------------------------------

    def _has_backlog(self) -> bool:
        """Whether brokers acknowledge rows too slowly to hand over more for now.

        Without this limit, librdkafka's queue could hold more rows than brokers can acknowledge
        before the transaction times out.
        """
        waiting = self._producer.records.unacknowledged
        if self.full or waiting * self._bytes <= _BACKLOG_BYTES * self._rows:
            return False
        acknowledged = self._rows - waiting
        return waiting * self._age() * 1000 > acknowledged * self._settings.max_transaction_ms

    def _too_old(self) -> bool:
        return self._age() * 1000 >= self._settings.transaction_timeout_ms

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[None]:
        """Names the transaction's age as the cause of failures that it explains."""
        try:
            yield
        except TransactionError as error:
            if error.again and self._too_old():
                raise self._too_slow(str(error)) from error
            raise

    def _too_slow(self, cause: str) -> TransactionError:
        settings = self._settings
        topic, partition = next(iter(self._offsets))
        first, end = self._firsts[topic, partition], self._offsets[topic, partition]
        if len(self._offsets) > 1 or end - first > 1:
            what = f"{self._rows} rows, those of source {topic}-{partition} offset {first} first"
            advice = (
                "lower max_transaction_records, max_transaction_bytes or max_transaction_ms, or "
                "raise transaction_timeout_ms"
            )
        else:
            # All rows of one source record belong in one transaction.
            what = f"the row of source {topic}-{partition} offset {first} alone"
            if self._rows > 1:
                what = f"the {self._rows} rows made of source {topic}-{partition} offset {first}"
            advice = "raise transaction_timeout_ms (and the brokers' transaction.max.timeout.ms)"
        return TransactionError(
            f"the transaction with {what} was open for {self._age() * 1000:.0f} ms, longer than "
            f"transaction_timeout_ms={settings.transaction_timeout_ms}, so the brokers abort it: "
            f"{cause}. If brokers are not just away, {advice}",
            again=True,
            too_slow=True,
        )

    def _refusal(
        self, what: str, member: MemberIdentity, answer: OffsetCommitAnswer
    ) -> TransactionError:
        settings = self._settings
        if answer.verdict is Verdict.FENCED and self._too_old():
            return self._too_slow(str(answer))
        remedies = {
            remedy(
                code,
                query_acls(settings.group_id, settings.id_prefix, [topic], []),
                settings.client.grantee,
            )
            for (topic, _partition), code in answer.codes.items()
        }
        return TransactionError(
            f"{what} as member {member.instance_id} at epoch {member.epoch}: "
            + "; ".join([str(answer), *sorted(remedies - {""})]),
            again=answer.verdict is not Verdict.REFUSED,
        )

    def abort(self) -> None:
        """Aborts the open transaction, if there is one; nothing of it becomes visible."""
        self._refused_rows.parts = []
        if self.open:
            self._give_up()

    def close(self) -> None:
        """Closes what the dead letters have opened; the producer stays open."""
        if self.letters is not None:
            self.letters.close()


def _compression(settings: WriterSettings) -> str | None:
    client = settings.client.for_producer("", settings.transaction_timeout_ms)
    found = client.get("compression.type", client.get("compression.codec"))
    return None if found is None else str(found)
