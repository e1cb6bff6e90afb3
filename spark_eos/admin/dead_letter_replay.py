"""Replays a dead-letter topic's records exactly once.

A replay keeps its progress in the offsets of a group, and commits these in the transactions that
hold the replayed records (KIP-98). Its transactional id is the group's, so a later replay of the
same topic fences an earlier one before it reads how far that came.

The group has no members, so brokers forget its offsets after offsets.retention.minutes. Each
transaction commits those of all partitions anew: they are forgotten together, and a replay without
them begins nowhere unless it is told to.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from spark_eos.acls import Operation, replay_group
from spark_eos.admin.dead_letter_topic import DeadLetter, DeadLetterTopic, dead_letter, explained
from spark_eos.client.flushing import flush_records
from spark_eos.errors import OffsetsLostError, SparkEosError, TopicNotFoundError, WriteError
from spark_eos.kafka import cluster
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline, RetriableError
from spark_eos.kafka.offsets import committed_offsets

# Records of one transaction of a replay.
_BATCH: Final = 500
_TRANSACTION_TIMEOUT_MS: Final = 60_000
# Errors name at most so many partitions.
_NAMED: Final = 5

# A letter, and the topic and partition to replay it to; None to pass over it.
_Planned = tuple[DeadLetter, tuple[str, int] | None]


@dataclass
class Replay:
    """What a replay has written, or would write.

    Attributes:
        written: Number of letters by the topic they went to.
        reasons: Number of letters by reason.
        omitted: Number of letters that were passed over because their value was not kept.
    """

    written: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    omitted: int = 0

    @property
    def total(self) -> int:
        """Number of letters written."""
        return self.written.total()


class DeadLetterReplay:
    """Writes letters that no earlier replay has written, without the headers that explain them.

    Each letter is written exactly once, whatever ends a replay and when it is started again, as
    long as the brokers keep the group's offsets. Letters for their source topic go to their source
    partition.

    Args:
        letters: The dead-letter topic.
        target: The topic to write to; None for each letter's source topic.
        limit: Maximum number of letters.
        skip_omitted: Whether to pass over letters whose value was too large to keep; if not,
            such a letter ends the replay before it.
        from_beginning: Whether to begin at the first letter in partitions of which the group has
            no offset; if not, letters in such a partition are refused.

    Attributes:
        done: What has been written so far.

    Example:
        ::

            topic = DeadLetterTopic(settings, "orders-dlq", timeout=15)
            done = DeadLetterReplay(topic, from_beginning=True).run()
    """

    def __init__(
        self,
        letters: DeadLetterTopic,
        target: str | None = None,
        *,
        limit: int | None = None,
        skip_omitted: bool = False,
        from_beginning: bool = False,
    ) -> None:
        self._letters = letters
        self._target = target
        self._limit = limit
        self._skip_omitted = skip_omitted
        self._from_beginning = from_beginning
        self._group_id = replay_group(letters.name)
        self._producer: Any = None
        # The next offset of each partition of the dead-letter topic.
        self._next: dict[int, int] = {}
        self._known_topics: set[str] = set()
        self.done = Replay()

    def run(self, *, dry_run: bool = False) -> Replay:
        """Replays the letters that are there now.

        Args:
            dry_run: Whether only to tell what would be done.

        Raises:
            OffsetsLostError: There are letters in partitions of which the group has no offset.
            WriteError: A letter can't be replayed, or another replay has begun meanwhile.
            TopicNotFoundError: A topic to replay to does not exist.
            AuthorizationError: An ACL is missing.
            SparkEosError: As `DeadLetterTopic.read`.
        """
        letters, done = self._letters, self.done
        with explained(), letters.consumer(self._group_id) as consumer:
            if not dry_run:
                # Fence before reading how far an earlier replay came.
                self._producer = self._new_producer()
            self._next = self._starts(letters.bounds(consumer))
            if self._target is not None:
                self._check_topic(self._target)
            batch: list[_Planned] = []
            for message in letters.messages(consumer, self._next):
                if self._limit is not None and done.total + len(batch) >= self._limit:
                    break
                letter = dead_letter(message)
                try:
                    batch.append((letter, self._place(letter)))
                except SparkEosError:
                    self._write(consumer, batch)
                    raise
                if len(batch) >= _BATCH:
                    self._write(consumer, batch)
                    batch = []
            # Also if there is nothing to write: it renews the offsets.
            self._write(consumer, batch)
        return done

    def _place(self, letter: DeadLetter) -> tuple[str, int] | None:
        """Topic and partition to replay to; -1 lets the key choose, None passes over the letter."""
        if "omitted" in letter.told:
            if self._skip_omitted:
                return None
            raise WriteError(
                f"dead letter {letter.place} was too large to keep its value, so it can't be "
                "replayed, and the replay ends before it. Read its source record yourself, and "
                "give --skip-omitted to pass over it"
            )
        source, target = letter.source, self._target
        reason = _not_for_its_source(letter)
        if source is not None and reason is None and target in (None, source[0]):
            self._check_topic(source[0])
            return source
        if target is None:
            raise WriteError(
                f"dead letter {letter.place} {reason}: name the topic to write to (--to)"
            )
        return target, -1

    def _check_topic(self, topic: str) -> None:
        """Checks that a topic exists, since brokers may create one for records that come."""
        if topic in self._known_topics:
            return
        deadline = Deadline(self._letters.timeout, "--timeout")
        with closing(Wire(self._letters.settings)) as wire:
            if topic not in cluster.topics(wire, [topic], deadline, Operation.WRITE):
                raise TopicNotFoundError(
                    f"topic {topic!r}, which dead letters are to be replayed to, does not exist: "
                    "create it, or name another one (--to)"
                )
        self._known_topics.add(topic)

    def _write(self, consumer: Any, batch: list[_Planned]) -> None:
        chosen = [(letter, place) for letter, place in batch if place is not None]
        ends = {letter.partition: letter.offset + 1 for letter, _ in batch}
        if self._producer is not None:
            self._write_transaction(consumer, chosen, self._next | ends)
        self._next |= ends
        for letter, (topic, _partition) in chosen:
            self.done.written[topic] += 1
            self.done.reasons[letter.reason] += 1
        self.done.omitted += len(batch) - len(chosen)

    def _write_transaction(
        self,
        consumer: Any,
        chosen: list[tuple[DeadLetter, tuple[str, int]]],
        offsets: dict[int, int],
    ) -> None:
        producer, timeout = self._producer, self._letters.timeout
        failed: list[tuple[KafkaError, str]] = []

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                failed.append((error, message.topic()))

        producer.begin_transaction()
        for letter, (topic, partition) in chosen:
            producer.produce(
                topic,
                letter.value,
                letter.key,
                partition,
                on_delivery,
                on_delivery,
                letter.timestamp,
                list(letter.own_headers),
            )
        if flush_records(producer, timeout) or failed:
            error, topic = failed[0] if failed else (None, chosen[0][1][0])
            what = f"no answer within {timeout:g} s" if error is None else error.str()
            producer.purge()
            producer.abort_transaction(timeout)
            raise WriteError(f"replaying to {topic!r}: {what}")
        places = [TopicPartition(self._letters.name, *place) for place in offsets.items()]
        group = consumer.consumer_group_metadata()
        self._retried(
            "committing how far the topic is replayed",
            lambda seconds: producer.send_offsets_to_transaction(places, group, seconds),
        )
        self._retried("committing the replayed letters", producer.commit_transaction)

    def _new_producer(self) -> Any:
        settings = self._letters.settings.for_producer(self._group_id, _TRANSACTION_TIMEOUT_MS)
        producer = Producer({**settings, "log_level": 0})
        self._retried("starting the replay's producer", producer.init_transactions)
        return producer

    def _retried(self, what: str, call: Callable[[float], None]) -> None:
        """Makes a call with a time limit in seconds until its error is not retriable."""
        deadline = Deadline(self._letters.timeout, "--timeout")

        def attempt() -> None:
            try:
                call(deadline.remaining())
            except KafkaException as error:
                if error.args[0].retriable():
                    raise RetriableError(str(error.args[0])) from error
                raise

        deadline.attempts(what)(attempt)

    def _starts(self, bounds: dict[int, tuple[int, int]]) -> dict[int, int]:
        """Where to begin, by partition."""
        committed = self._committed(bounds)
        unknown = [p for p, (low, end) in bounds.items() if low < end and p not in committed]
        if unknown and not self._from_beginning:
            names = ", ".join(f"{self._letters.name}-{partition}" for partition in unknown[:_NAMED])
            raise OffsetsLostError(
                f"how far {len(unknown)} of {len(bounds)} partitions were replayed is not known "
                f"({names}): either this is the first replay, or the offsets of group "
                f"{self._group_id!r} have expired since the last one (offsets.retention.minutes), "
                "and letters may have been replayed. Nothing is written. --from-beginning begins "
                "at the first letter of these partitions"
            )
        return {p: max(low, committed.get(p, low)) for p, (low, _end) in bounds.items()}

    def _committed(self, partitions: Iterable[int]) -> dict[int, int]:
        """How far the topic has been replayed; not by librdkafka, which hides why it can't tell."""
        topic, deadline = self._letters.name, Deadline(self._letters.timeout, "--timeout")
        with closing(Wire(self._letters.settings)) as wire:
            found = cluster.topics(wire, [topic], deadline)
            ids = {name: one.topic_id for name, one in found.items()}
            places = [(topic, partition) for partition in partitions]
            offsets = committed_offsets(wire, self._group_id, places, ids, deadline)
        return {partition: offset for (_, partition), offset in offsets.items()}


def _not_for_its_source(letter: DeadLetter) -> str | None:
    """Why a letter can't be written to its source topic, for a text; None if it can."""
    told = letter.told
    if letter.source is None:
        return "does not tell its source topic, as those of staged queries don't"
    if "cluster" in told:
        return (
            f"is of a record in topic {told['topic']!r} of another cluster, {told['cluster']!r}, "
            "and a topic of that name in this one may be any other"
        )
    if "record" in told:
        return (
            f"holds what a row would have written, since {told['topic']}-{told['partition']} "
            f"offset {told.get('offset')} was deleted before it could be read again"
        )
    return None
