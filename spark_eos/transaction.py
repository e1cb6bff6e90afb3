"""One worker's transactions: rows in, offsets inside, one commit for both.

The steps of a commit: flush; send each member's source offsets by TxnOffsetCommit; only if every
partition of every answer is accepted, end the transaction by committing it.
"""

import enum
import time
from collections.abc import Mapping

from spark_eos import calls
from spark_eos.deadline import Deadline
from spark_eos.errors import DeadlineExceededError, SparkEosError, Verdict, code_name, verdict
from spark_eos.plan import BatchPlan
from spark_eos.producer import SlotProducer, TransactionError
from spark_eos.records import SourceRows, target_topics
from spark_eos.report import Counters
from spark_eos.settings import WriterSettings
from spark_eos.transaction_calls import MemberIdentity, txn_offset_commit

Offsets = dict[tuple[str, int], int]


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

    def __init__(self, producer: SlotProducer, settings: WriterSettings, plan: BatchPlan) -> None:
        self._producer = producer
        self._settings = settings
        self._plan = plan
        self._state = State.NONE
        self._offsets: Offsets = {}
        self._rows = 0
        self._bytes = 0
        self._began = 0.0
        self._known_topics: set[str | None] = set()
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
        """Whether the open transaction has reached one of the chunk limits."""
        settings = self._settings
        return self.open and (
            self._rows >= settings.chunk_records
            or self._bytes >= settings.chunk_bytes
            or (time.monotonic() - self._began) * 1000 >= settings.chunk_ms
        )

    def add(self, found: SourceRows) -> None:
        """Hands rows over, beginning a transaction if none is open.

        Raises:
            TransactionError: they can't be written; the caller aborts.
        """
        started = time.monotonic()
        topics = target_topics(found, self._settings.topic)
        self._check_topics(found, topics)
        if not self.open:
            self._producer.begin()
            self._become(State.OPEN)
            self._offsets, self._rows, self._bytes = {}, 0, 0
            self._began = time.monotonic()
        self._producer.produce(found, topics)
        self._offsets[found.topic, found.partition] = found.last_offset + 1
        self._rows += found.rows.num_rows
        self._bytes += found.rows.nbytes
        self.counters.bytes += found.rows.nbytes
        self.counters.produce_ms += (time.monotonic() - started) * 1000

    def _check_topics(self, found: SourceRows, topics: list[str | None]) -> None:
        # Asked for by us: librdkafka would wait for a topic that does not exist, or create it.
        unknown = set(topics) - self._known_topics
        if not unknown:
            return
        names = sorted(topic for topic in unknown if topic is not None)
        sources = {topic for topic, _partition in self._plan}
        deadline = Deadline(self._settings.connect_timeout, "connect_timeout")
        try:
            known = calls.topics(self._producer.wire, names, deadline)
        except SparkEosError as error:
            raise TransactionError(
                f"looking target topics up: {error}", again=isinstance(error, TimeoutError)
            ) from error
        self._known_topics |= known.keys() - sources
        for row, wanted in enumerate(topics):
            if wanted is None:
                reason = "the row names no topic and the sink has no default (topic=)"
            elif wanted in sources:
                reason = (
                    f"the row is for {wanted!r}, a topic the query reads: select the columns to "
                    "write (the source's `topic` and `partition` columns are read as targets)"
                )
            elif wanted not in known:
                reason = f"the row's topic {wanted!r} does not exist; create it first"
            else:
                continue
            raise TransactionError(f"{found.position(row)}: {reason}", again=False)

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
            self._producer.flush(deadline)
            flushed = clock()
            # 2. The source offsets, each partition with the member it is assigned to.
            self._send_offsets(deadline)
            sent = clock()
            # 3. Only then the end.
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
        topic_ids = {topic: plan.topic_id for (topic, _), plan in self._plan.items()}
        for member, offsets in by_member.items():
            try:
                codes = txn_offset_commit(
                    self._producer.wire,
                    self._settings.group_id,
                    self._producer.identity,
                    member,
                    offsets,
                    topic_ids,
                    self._settings.offset_commit_version,
                    deadline,
                    lambda: self._producer.disturb("an answer to TxnOffsetCommit was lost"),
                )
            except DeadlineExceededError as error:
                raise TransactionError(str(error), again=True) from error
            except SparkEosError as error:
                raise TransactionError(str(error), again=False) from error
            found = verdict(codes.values())
            age_ms = (time.monotonic() - self._began) * 1000
            if found is Verdict.FENCED and age_ms >= self._settings.transaction_timeout_ms:
                raise TransactionError(
                    f"the transaction was open for {age_ms:.0f} ms, longer than "
                    f"transaction_timeout_ms={self._settings.transaction_timeout_ms}, so the "
                    "brokers have aborted it: rows came too slowly. Raise it, or lower "
                    "spark.sql.execution.arrow.maxRecordsPerBatch for rows to come in smaller "
                    "batches",
                    again=True,
                )
            if found is not Verdict.ACCEPTED:
                refused = ", ".join(
                    f"{topic}-{partition}: {code_name(code)}"
                    for (topic, partition), code in sorted(codes.items())
                    if code
                )
                raise TransactionError(
                    f"committing offsets of group {self._settings.group_id!r} as member "
                    f"{member.instance_id} at epoch {member.epoch}: {refused}",
                    again=found is not Verdict.REFUSED,
                )

    def abort(self) -> None:
        """Ends the open transaction, if there is one, without a trace."""
        if self.open:
            self._become(State.NONE)
            self._producer.drop()
