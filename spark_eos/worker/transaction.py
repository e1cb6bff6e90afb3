"""One worker's transactions: rows in, offsets inside, one commit for both.

The steps of a commit: flush; send each member's source offsets by TxnOffsetCommit; only if every
partition of every answer is accepted, end the transaction by committing it.
"""

import contextlib
import enum
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from spark_eos.acls import Operation, query_acls
from spark_eos.batch.plan import BatchPlan
from spark_eos.batch.task_report import Counters
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.client.error_codes import Verdict, remedy
from spark_eos.errors import DeadlineExceededError, SparkEosError
from spark_eos.kafka.cluster import TopicInfo
from spark_eos.kafka.deadline import Deadline
from spark_eos.kafka.topic_cache import MissingTopicsError, source_topics
from spark_eos.kafka.transactions import (
    BY_ID,
    MemberIdentity,
    OffsetCommitAnswer,
    txn_offset_commit,
)
from spark_eos.worker.librdkafka_errors import TransactionError
from spark_eos.worker.producer import TransactionalProducer
from spark_eos.worker.records import SourceRows, target_topics

Offsets = dict[tuple[str, int], int]
# Seconds. Deleting a topic, creating it anew and writing to it takes longer than a transaction
# that is open for less; looking the topics up takes some milliseconds.
_LONG: Final = 0.5

# However old the transaction is: the answer then tells what became of it.
_LEAST_SECONDS: Final = 1.0

# So much may wait for acknowledgement while nothing is known of the brokers' pace.
_BACKLOG_BYTES: Final = 4 << 20


class State(enum.Enum):
    """Of a worker's transaction."""

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
        producer: the worker's producer.
        settings: the writer's settings.
        plan: how to treat each source partition.
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
        # Target topics of the open transaction, as they were when it first wrote to them.
        self._targets: dict[str, TopicInfo] = {}
        self._sources = {topic for topic, _partition in plan}
        self.counters = Counters()

    def _become(self, state: State) -> None:
        if state not in _NEXT[self._state]:
            raise AssertionError(f"transaction can't go from {self._state} to {state}")
        self._state = state

    @property
    def open(self) -> bool:
        """Whether rows have been handed over that are not committed."""
        return self._state is State.OPEN

    @property
    def offsets(self) -> Mapping[tuple[str, int], int]:
        """Next source offset by (topic, partition), as the open transaction would commit them."""
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

    def add(self, found: SourceRows) -> None:
        """Hands rows over, beginning a transaction if none is open.

        Raises:
            TransactionError: they can't be written; the caller aborts.
        """
        started = time.monotonic()
        topics = target_topics(found, self._settings.topic)
        targets = self._look_up(found, topics)
        if not self.open:
            self._producer.begin()
            self._become(State.OPEN)
            self._offsets, self._firsts, self._rows, self._bytes = {}, {}, 0, 0
            self._targets = {}
            self._began = time.monotonic()
        self._targets = targets | self._targets
        self._firsts.setdefault((found.topic, found.partition), found.first_offset)
        self._offsets[found.topic, found.partition] = found.last_offset + 1
        self._rows += found.rows.num_rows
        self._bytes += found.rows.nbytes
        with self._in_time():
            self._producer.produce(found, topics, self._check_targets)
            self._producer.wait_while(self._has_backlog, self._check_targets)
        self.counters.bytes += found.rows.nbytes
        self.counters.produce_ms += (time.monotonic() - started) * 1000

    def _look_up(self, found: SourceRows, topics: list[str | None]) -> dict[str, TopicInfo]:
        names = set(topics)
        refused = names & {None, *self._sources}
        if refused:
            row = next(row for row, wanted in enumerate(topics) if wanted in refused)
            if topics[row] is None:
                reason = "the row names no topic and the sink has no default (topic=)"
            else:
                reason = (
                    f"the row is for {topics[row]!r}, a topic the query reads: select the columns "
                    "to write (the source's `topic` and `partition` columns are read as targets)"
                )
            raise TransactionError(f"{found.position(row)}: {reason}", again=False)
        try:
            # Asked for by us: librdkafka would wait for a topic that does not exist, or create it.
            wanted = {name for name in names if name is not None}
            return self._producer.topics.get(wanted, Operation.WRITE)
        except MissingTopicsError as error:
            row = next(row for row, wanted in enumerate(topics) if wanted in error.names)
            raise TransactionError(
                f"{found.position(row)}: the row's topic {topics[row]!r} does not exist; create it "
                f"first ({error.reason})",
                again=False,
            ) from error
        except SparkEosError as error:
            raise _failure("looking target topics up", error) from error

    def _check_targets(self) -> None:
        """The target topics must be as they were when the transaction first wrote to them.

        Raises:
            TransactionError: one is not; if it still exists, another round may write.
        """
        try:
            now = self._producer.topics.refresh(self._targets, Operation.WRITE)
        except SparkEosError as error:
            raise _failure("looking target topics up", error) from error
        for name, before in self._targets.items():
            if now[name] != before:
                what = "has more partitions"
                if now[name].topic_id != before.topic_id:
                    what = "was deleted and created anew"
                raise TransactionError(
                    f"target topic {name!r} {what}: it was {before} and is {now[name]}", again=True
                )

    def _check_sources(self, names: Collection[str]) -> None:
        """The source topics must still be those whose offsets the plan tells to commit.

        Raises:
            OffsetsLostError, TopicNotFoundError: one is not.
        """
        known = {topic: plan.topic_id for (topic, _), plan in self._plan.items() if topic in names}
        source_topics(self._producer.topics, known, known, self._settings.group_id)

    def commit(self) -> None:
        """Commits the open transaction: its rows and their source offsets, or neither.

        Raises:
            TransactionError: it is not committed, or nobody knows; the producer is gone.
        """
        deadline = Deadline(self._settings.transaction_timeout_ms / 1000, "transaction_timeout_ms")
        self._become(State.COMMITTING)
        counters, clock = self.counters, time.monotonic
        try:
            # 1. Every record acknowledged, none failed.
            started = clock()
            with self._in_time():
                self._producer.flush(self._before_the_broker_aborts(deadline), self._check_targets)
            flushed = clock()
            if flushed - self._began >= _LONG:
                # What was written to a topic that is gone must not count as written.
                self._check_targets()
            # 2. The source offsets, each partition with the member it is assigned to.
            self._send_offsets(deadline)
            sent = clock()
            # 3. Only then the end.
            with self._in_time():
                self._producer.commit(deadline)
            counters.flush_ms += (flushed - started) * 1000
            counters.offsets_ms += (sent - flushed) * 1000
            counters.commit_ms += (clock() - sent) * 1000
        except BaseException:
            self._become(State.NONE)
            self._producer.drop()
            raise
        self._become(State.NONE)
        counters.transactions += 1
        if not self._producer.clean():
            self._producer.drop()

    def _send_offsets(self, deadline: Deadline) -> None:
        by_member: dict[MemberIdentity, Offsets] = {}
        for partition, offset in self._offsets.items():
            by_member.setdefault(self._plan[partition].member, {})[partition] = offset
        what = f"committing offsets of group {self._settings.group_id!r}"
        topic_ids = {topic: plan.topic_id for (topic, _), plan in self._plan.items()}
        by_name = False
        for member, offsets in by_member.items():
            try:
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
                    {place: self._plan[place].metadata for place in offsets},
                )
            except SparkEosError as error:
                raise _failure(what, error) from error
            self.counters.count_offset_commit(answer.version)
            if answer.verdict is not Verdict.ACCEPTED:
                raise self._refusal(what, member, answer)
            by_name |= answer.version < BY_ID
        if by_name:
            # By name they may have gone to a topic created anew, and would be committed to it. If
            # one is deleted from here on, the broker deletes them too.
            try:
                self._check_sources({topic for topic, _partition in self._offsets})
            except SparkEosError as error:
                raise _failure(what, error) from error

    def _before_the_broker_aborts(self, deadline: Deadline) -> Deadline:
        # Else a code that is retried to the end would be hidden by those of an aborted transaction.
        age = self._age()
        left = max(_LEAST_SECONDS, self._settings.transaction_timeout_ms / 1000 - age)
        return Deadline(min(left, deadline.remaining()), deadline.setting)

    # Time -------------------------------------------------------------------------------------

    def _has_backlog(self) -> bool:
        """Whether brokers take rows so slowly that no more should be handed over for now.

        Otherwise librdkafka's queue may take more rows than brokers acknowledge while the
        transaction may be open.
        """
        waiting = self._producer.unacknowledged
        if self.full or waiting * self._bytes <= _BACKLOG_BYTES * self._rows:
            return False
        acknowledged = self._rows - waiting
        return waiting * self._age() * 1000 > acknowledged * self._settings.max_transaction_ms

    def _too_old(self) -> bool:
        return self._age() * 1000 >= self._settings.transaction_timeout_ms

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[None]:
        """Tells of what fails for the transaction's age that it does so."""
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
            # Its rows can't be divided between transactions.
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
        """Ends the open transaction, if there is one, without a trace."""
        if self.open:
            self._become(State.NONE)
            self._producer.drop()


def _failure(what: str, error: SparkEosError) -> TransactionError:
    # Only where no answer came in time might another round get one.
    return TransactionError(f"{what}: {error}", again=isinstance(error, DeadlineExceededError))
