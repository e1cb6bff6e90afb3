"""One worker's transactions: rows and their source offsets, committed together."""

# The steps of a commit: flush the records; send the source offsets in TxnOffsetCommit requests;
# commit the transaction only if the answers accept every partition.

import contextlib
import math
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from spark_eos._client.error_codes import Verdict, remedy
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.offsets import in_requests
from spark_eos._kafka.topic_cache import source_topics
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._kafka.transactions import (
    BY_ID,
    OffsetCommitAnswer,
    txn_offset_commit,
)
from spark_eos._worker.dead_letter_builder import DeadLetterBuilder
from spark_eos._worker.librdkafka_errors import TransactionError, as_transaction_error
from spark_eos._worker.no_dead_letters import NoDeadLetters
from spark_eos._worker.plan import BatchPlan
from spark_eos._worker.producer import TransactionalProducer
from spark_eos._worker.record_sender import RefusedRecordError
from spark_eos._worker.records import (
    SourceRows,
    target_topics,
)
from spark_eos._worker.target_topics import TargetTopics
from spark_eos._worker.task_report import Counters
from spark_eos._worker.transaction_size import FULL, TransactionSize
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.acls import describe_configs, query_acls
from spark_eos.errors import SparkEosError

# Transactions shorter than 0.5 s skip the topic recheck, which takes some milliseconds: a topic
# can't be deleted, recreated and written to that quickly.
_LONG: Final = 0.5
# Minimum time, in seconds, to wait for an answer, even if the transaction is about to time out:
# only the answer shows whether the offsets were accepted.
_LEAST_SECONDS: Final = 1.0
# Up to this many unacknowledged bytes are allowed, however slowly the brokers acknowledge them.
_BACKLOG_BYTES: Final = 4 << 20


class TransactionWriter:
    """Writes one task's rows in transactions of bounded size."""

    def __init__(
        self,
        producer: TransactionalProducer,
        settings: WriterSettings,
        plan: BatchPlan,
        size: TransactionSize = FULL,
    ) -> None:
        self._producer = producer
        self._settings = settings
        self._first_size = self._size = size
        # The limits of the open or the next transaction.
        self.limits = self._size.limits(settings.transactions)
        self._member = plan.member
        self._plan = plan.partitions
        self._reset()
        self._targets = TargetTopics(
            producer.topics, settings.refuses_target, producer.absent_topics
        )
        self._rules = producer.rules
        self.letters = (
            NoDeadLetters(self._rules)
            if settings.dead_letters is None
            else DeadLetterBuilder(settings, settings.dead_letters, self._targets, self._rules)
        )
        self.counters = Counters()

    def _reset(self) -> None:
        # True if a transaction has begun and is not being committed or aborted.
        self.open = False
        # The group's next offsets, which the transaction would commit.
        self.offsets: Positions = {}
        # The first row's partition, offset, and position as shown in messages.
        self._first = (TopicPartition("", 0), 0, "")
        self._rows = self._bytes = self._timestamps_adjusted = 0
        self._past_retention: Counter[str] = Counter()
        self._began = time.monotonic()

    @property
    def full(self) -> bool:
        """True if the open transaction has reached one of its limits."""
        return self.open and (
            self._rows >= self.limits.max_records
            or self._bytes >= self.limits.max_bytes
            or self._age() * 1000 >= self.limits.max_ms
        )

    @property
    def grown(self) -> bool:
        """True if transactions are larger than the task's first one."""
        return self._size.divisor < self._first_size.divisor

    @property
    def room(self) -> int:
        """The number of rows that still fit in the open transaction, or else in the next one."""
        taken = self._rows if self.open and not self.full else 0
        return self.limits.max_records - taken

    def _age(self) -> float:
        return time.monotonic() - self._began

    def ready(self, part: SourceRows) -> bool:
        """Return False if the open transaction should end before these rows are added."""
        # The open transaction could time out while the task waits for topics or partitions to
        # appear. Also, the open producer's batches may be larger than a topic accepts.
        topics = target_topics(part, self._settings.topic)
        if not self._targets.ready(part, topics.names):
            return False
        if not self.letters.ready(part, topics):
            return False
        self._rules.learn(self._written_to(topics.names))
        return self._has_small_batches

    @property
    def _has_small_batches(self) -> bool:
        """True if all topics accept batches as large as those of the open producer."""
        return self._producer.batch_size <= self._rules.batch_size

    def _written_to(self, topics: Collection[str | None]) -> set[str]:
        # Include the query's own target topics, so that later transactions don't need yet another
        # producer.
        return self._targets.known(topics) | {*self._settings.target_topics}

    def add(self, part: SourceRows, most_dead_letters: float = math.inf) -> None:
        """Add rows to the open transaction, or begin one.

        If the transaction would have too many dead letters, the rows are only counted.
        """
        started = time.monotonic()
        topics = target_topics(part, self._settings.topic)
        if not self.open:
            self._targets.look_again()
        faults = self.letters.classify(part, topics)
        firsts = topics.firsts(without=faults)
        self._targets.refuse(part, firsts)
        targets = self._targets.look_up(part, firsts)
        self._rules.learn(self._written_to(firsts))
        self.letters.check(part, topics)
        # This is true only if the open transaction already holds rows of the same record, and so
        # can't end here.
        too_large = self.open and not self._has_small_batches
        if too_large and part.rows.num_rows > 1:
            for row in part.slices(lambda: 1):
                self.add(row, most_dead_letters)
            return
        if not self.open:
            self._begin()
        self.letters.count(part, faults)
        # Dead letters may be much larger than their rows, so don't build them needlessly.
        if self.letters.counts.total > most_dead_letters:
            return
        self._targets.add(targets)
        if not self.offsets:
            self._first = part.partition, part.first_offset, part.position(0)
        self.offsets[part.partition] = part.last_offset + 1
        self._rows += part.rows.num_rows
        self._bytes += part.rows.nbytes
        with self._judged("handing over rows"):
            records = self._producer.records
            records.produce(part, topics, self.letters.dead_letters(part, faults))
            self._timestamps_adjusted += part.zero_timestamps(faults)
            self._past_retention += self._rules.past_retention(part, topics, faults)
            if too_large:
                self._await_acknowledgements()
            records.wait_while(self._has_backlog)
        self.counters.bytes += part.rows.nbytes
        self.counters.produce_ms += (time.monotonic() - started) * 1000

    @contextlib.contextmanager
    def _judged(self, what: str) -> Iterator[None]:
        """Raise a `TransactionError` that says whether another attempt may help."""
        try:
            yield
        except (SparkEosError, TransactionError) as error:
            judged = self._judge(what, error)
            if judged.again and not judged.too_slow and self._too_old():
                judged = self._too_slow(str(judged))
            raise judged from error

    def _judge(self, what: str, error: SparkEosError | TransactionError) -> TransactionError:
        if isinstance(error, SparkEosError):
            return as_transaction_error(what, error, self._settings)
        if not isinstance(error, RefusedRecordError):
            return error
        # Check refused rows once more: the topic's config may have changed since, or a record may
        # have grown too old.
        part, topic = error.part, error.topic
        changed = self._rules.changed(topic) or not self._has_small_batches
        topics = target_topics(part, self._settings.topic)
        again = changed or bool(self._rules.faults(part, topics, error.replaced))
        why = ""
        if again:
            why = ". The topic's config has changed meanwhile, or the record has grown too old"
        elif not self._rules.is_known(topic):
            needed = self._settings.client.principal.lacks([describe_configs(topic)])
            why = f". Rows that it refuses can't be recognized in advance: {needed}"
        return TransactionError(f"{error}{why}", again=again)

    def _begin(self) -> None:
        self._producer.begin(self._targets.check)
        self._reset()
        self.open = True
        self._targets.clear()
        self.letters.begin()

    def _give_up(self) -> None:
        self.open = False
        self._producer.drop()

    def _topic_ids(self) -> dict[str, uuid.UUID]:
        return {partition.topic: self._plan[partition].topic_id for partition in self.offsets}

    def _check_sources(self, names: Collection[str]) -> None:
        """Check that the topics are still the ones whose offsets the plan commits."""
        known = {topic: id_ for topic, id_ in self._topic_ids().items() if topic in names}
        source_topics(self._producer.topics, known, known, self._settings.group_id)

    def commit(self) -> None:
        """Commit the open transaction: its rows and the group's offsets, or neither."""
        self.open = False
        try:
            with self._judged(f"committing offsets of group {self._settings.group_id!r}"):
                # First, wait until all records are acknowledged. Then send the offsets as the
                # member that is assigned their partitions. Commit the transaction only if all
                # offsets are accepted.
                deadline = self._flush()
                self._send_offsets(deadline)
                self._commit(deadline)
        except BaseException:
            self._give_up()
            raise
        self.counters.transactions += 1
        self.counters.timestamps_adjusted += self._timestamps_adjusted
        self.counters.add_past_retention(self._past_retention)
        self._size = self._size.after(self._age(), self._settings.transactions)
        self.limits = self._size.limits(self._settings.transactions)
        if not self._producer.clean():
            self._producer.drop()

    def _flush(self) -> Deadline:
        """Wait until all records are acknowledged; return the time limit for the next steps."""
        with self.counters.timed("flush_ms"):
            self._await_acknowledgements()
        if self._age() >= _LONG:
            # Rows in a topic that has been deleted must not count as written.
            self._targets.check()
        return self._deadline()

    def _await_acknowledgements(self) -> None:
        self._producer.records.flush(self._before_the_broker_aborts(self._deadline()))

    def _commit(self, deadline: Deadline) -> None:
        with self.counters.timed("commit_ms"):
            self._producer.commit(deadline)

    def _deadline(self) -> Deadline:
        return Deadline(self._settings.transactions.timeout_ms / 1000, "transactions.timeout_ms")

    def _send_offsets(self, deadline: Deadline) -> None:
        texts = {partition: self._plan[partition].metadata for partition in self.offsets}
        topic_ids, by_name = self._topic_ids(), False
        with self.counters.timed("offsets_ms"):
            for offsets in in_requests(self.offsets, texts):
                answer = txn_offset_commit(
                    self._producer.connections,
                    self._settings.group_id,
                    self._producer.identity,
                    self._member,
                    offsets,
                    topic_ids,
                    self._before_the_broker_aborts(deadline),
                    lambda: self._producer.disturb("an answer to TxnOffsetCommit was lost"),
                    self._check_sources,
                    texts,
                )
                self.counters.offsets_answered(answer.version)
                if answer.verdict is not Verdict.ACCEPTED:
                    raise self._refusal(answer)
                by_name |= answer.version < BY_ID
            if by_name:
                # Offsets that were sent by topic name may have been applied to a recreated topic.
                # If a topic is deleted after this check, the broker deletes its offsets too.
                self._check_sources({topic for topic, _ in self.offsets})

    def _before_the_broker_aborts(self, deadline: Deadline) -> Deadline:
        # Stop waiting before the brokers abort the transaction: an error code that arrives after
        # the abort only says that the transaction was aborted, and would hide the cause.
        left = max(_LEAST_SECONDS, self._settings.transactions.timeout_ms / 1000 - self._age())
        return Deadline(min(left, deadline.remaining()), deadline.setting)

    # Time -------------------------------------------------------------------------------------

    def _has_backlog(self) -> bool:
        """Return True if brokers acknowledge rows too slowly to hand over more for now."""
        # Without this limit, librdkafka's queue could hold more rows than brokers can acknowledge
        # before the transaction times out.
        waiting = self._producer.records.unacknowledged
        if self.full or waiting * self._bytes <= _BACKLOG_BYTES * self._rows:
            return False
        acknowledged = self._rows - waiting
        return waiting * self._age() * 1000 > acknowledged * self.limits.max_ms

    def _too_old(self) -> bool:
        return self._age() * 1000 >= self._settings.transactions.timeout_ms

    def _too_slow(self, cause: str) -> TransactionError:
        settings = self._settings
        partition, offset, position = self._first
        if len(self.offsets) > 1 or self.offsets[partition] - offset > 1:
            what = f"{self._rows} rows (the first from {position})"
            advice = (
                "lower transactions.max_records, transactions.max_bytes or transactions.max_ms, or "
                "raise transactions.timeout_ms"
            )
        else:
            # All rows of one source record belong in one transaction.
            what = f"the row of {position} alone"
            if self._rows > 1:
                what = f"the {self._rows} rows made of {position}"
            advice = "raise transactions.timeout_ms (and the brokers' transaction.max.timeout.ms)"
        return TransactionError(
            f"the transaction with {what} was open for {self._age() * 1000:.0f} ms, longer than "
            f"transactions.timeout_ms={settings.transactions.timeout_ms}, so the brokers abort it: "
            f"{cause}. Unless brokers were unavailable at that time, {advice}",
            again=True,
            too_slow=True,
        )

    def _refusal(self, answer: OffsetCommitAnswer) -> TransactionError:
        settings, member = self._settings, self._member
        remedies = {
            remedy(
                code,
                query_acls(settings.group_id, settings.id_prefix, [topic], []),
                settings.client.principal,
            )
            for (topic, _partition), code in answer.codes.items()
        }
        return TransactionError(
            f"committing offsets of group {settings.group_id!r} as member {member.instance_id} "
            f"at epoch {member.epoch}: " + "; ".join([str(answer), *sorted(remedies - {""})]),
            again=answer.verdict is not Verdict.REFUSED,
        )

    def abort(self) -> None:
        """Abort the open transaction, if there is one; none of its records become visible."""
        if self.open:
            self._give_up()

    def close(self) -> None:
        """Close the connections opened for dead letters; the producer stays open."""
        self.letters.close()
