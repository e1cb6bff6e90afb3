"""Replays a dead-letter topic's records exactly once.

A replay keeps its progress in the offsets of a group, and commits these in the transactions that
hold the replayed records (KIP-98). Its transactional id is the group's, so a later replay of the
same topic fences an earlier one before it reads how far that came. An earlier one that goes on
finds the later one's progress, and ends.

The group has no members, so brokers forget its offsets after offsets.retention.minutes. Each
transaction commits those of all partitions anew: they are forgotten together, and a replay without
them begins nowhere unless it is told to.

Whoever may write to a dead-letter topic chooses what its records' headers say. So the topics that a
replay writes to are chosen by its caller, and letters of others are left for a later replay.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Producer

from spark_eos._admin.dead_letter_topic import DeadLetter, DeadLetterTopic, dead_letter, explained
from spark_eos._admin.replay_progress import PartitionProgress, PartitionScan, replay_offsets
from spark_eos._client.confluent_traps import flush_records, leave_transaction
from spark_eos._client.timestamps import producer_timestamp
from spark_eos._kafka import cluster
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline, RetriableError
from spark_eos._kafka.offset_metadata import CommittedOffset
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.acls import Operation, replay_group
from spark_eos.errors import (
    FencedByNewerRunError,
    OffsetsLostError,
    SparkEosError,
    TopicNotFoundError,
    WriteError,
)

# Records of one transaction of a replay.
_BATCH: Final = 500
_TRANSACTION_TIMEOUT_MS: Final = 60_000
# Seconds that an error or an interrupt waits for the open transaction's end; after that the brokers
# end it by its timeout.
_ABORT_SECONDS: Final = 5.0
# Errors name at most so many partitions.
_NAMED: Final = 5
# Errors show at most so many characters of a header.
_SHOWN: Final = 100

# A letter, and the partition to replay it to; -1 lets the key choose.
_Planned = tuple[DeadLetter, TopicPartition]


@dataclass
class Replay:
    """Numbers of letters that a replay has written and left, or would."""

    written: Counter[str] = field(default_factory=Counter)  # by the topic they went to
    # Left for a later replay: by their source topic, which was not chosen; by what else kept them
    # from it; and those whose headers can't be read.
    others: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    omitted: int = 0  # passed over, since their value or headers are not known
    timestamps_moved: int = 0  # written with 1 ms instead of a timestamp of 0

    @property
    def total(self) -> int:
        """Number of letters written."""
        return self.written.total()


class DeadLetterReplay:
    """Writes letters that no earlier replay has written, without the headers that explain them.

    Each letter is written exactly once, whatever ends a replay and when it is started again, as
    long as the brokers keep the group's offsets. Letters for their source topic go to their source
    partition. Letters that are left can be replayed later.
    """

    def __init__(
        self,
        letters: DeadLetterTopic,
        target: str | None = None,
        *,
        sources: Collection[str] | None = None,
        limit: int | None = None,
        skip_omitted: bool = False,
        from_beginning: bool = False,
    ) -> None:
        self._letters = letters
        self._target = target
        self._sources = sources
        self._limit = limit
        self._skip_omitted = skip_omitted
        self._from_beginning = from_beginning
        self._group_id = replay_group(letters.name)
        # For the next transaction: an answer may be lost, and a late request must not reach the
        # transaction after it. A new producer's id has another epoch.
        self._producer: Any = None
        self._dry_run = True
        # Offsets and texts as this replay has read or committed them last.
        self._committed: dict[int, tuple[int, str]] = {}
        self._scans: dict[int, PartitionScan] = {}
        # Numbers of partitions of the topics to write to.
        self._partitions: dict[str, int] = {}
        self.done = Replay()

    def run(self, *, dry_run: bool = False) -> Replay:
        """Replays the letters that are there now."""
        if not dry_run and self._target is None and self._sources is None:
            raise ValueError("a replay needs a target, or sources")
        letters, done = self._letters, self.done
        with explained(), letters.consumer(self._group_id) as consumer:
            self._dry_run = dry_run
            if not dry_run:
                # Fence before reading how far an earlier replay came.
                self._producer = self._new_producer()
            bounds = letters.bounds(consumer)
            committed = replay_offsets(letters, bounds)
            self._committed = _plain(committed)
            before = self._before(bounds, committed)
            self._scans = {p: PartitionScan(progress) for p, progress in before.items()}
            self._check_topics()
            starts = {partition: progress.start for partition, progress in before.items()}
            batch: list[_Planned] = []
            for read, message in enumerate(letters.messages(consumer, starts), 1):
                if self._limit is not None and done.total + len(batch) >= self._limit:
                    break
                letter = dead_letter(message)
                try:
                    batch.extend(self._planned(letter))
                except SparkEosError:
                    self._write(consumer, batch)
                    raise
                if read % _BATCH == 0:
                    self._write(consumer, batch)
                    batch = []
            # Also if there is nothing to write: it renews the offsets.
            self._write(consumer, batch)
        return done

    def _planned(self, letter: DeadLetter) -> list[_Planned]:
        """The letter with its target, if it is to be replayed now."""
        # None of a partition that was added meanwhile: the next replay begins there.
        scan = self._scans.get(letter.partition)
        if scan is None or not scan.due(letter.offset):
            return []
        unreadable = letter.headers is None
        kept_back = None if unreadable else self._kept_back(letter)
        if kept_back is not None or (unreadable and not self._skip_omitted):
            if not scan.leave(letter.offset):
                raise WriteError(
                    f"dead letter {letter.position} would have to be left, and its partition's "
                    "offset has no room to note more letters that were left, so the replay ends "
                    "before it. Replay some of these first (--source, --to), or pass over those "
                    "whose headers can't be read (--skip-omitted)"
                )
            if kept_back is None:
                self.done.unreadable += 1
            else:
                counter, key = kept_back
                counter[key] += 1
            return []
        omitted = letter.error_headers.get("omitted")
        if omitted is not None and not self._skip_omitted:
            raise WriteError(
                f"dead letter {letter.position} does not hold its whole record (omitted: "
                f"{omitted[:_SHOWN]}), so it can't be replayed, and the replay ends "
                "before it. Read its source record yourself, and give --skip-omitted to pass over "
                "it"
            )
        scan.replay(letter.offset)
        if unreadable or "omitted" in letter.error_headers:
            self.done.omitted += 1
            return []
        return [(letter, self._target_of(letter))]

    def _kept_back(self, letter: DeadLetter) -> tuple[Counter[str], str] | None:
        """If the letter is to be left: by which counter of `Replay`, and as what."""
        source, why = letter.source, _not_for_its_source(letter)
        if self._sources is not None and (source is None or source.topic not in self._sources):
            if source is not None and why is None:
                return self.done.others, source.topic
            return self.done.left, why or ""
        if self._target is not None:
            return None
        if why is not None:
            return self.done.left, why
        if source is not None and not self._has(source):
            return self.done.left, "name a partition that their source topic does not have"
        return None

    def _target_of(self, letter: DeadLetter) -> TopicPartition:
        source, target = letter.source, self._target
        if source is not None and (
            _not_for_its_source(letter) is None
            and target in (None, source.topic)
            and self._has(source)
        ):
            return source
        return TopicPartition(target or "", -1)

    def _has(self, partition: TopicPartition) -> bool:
        """Whether a partition exists, as far as its topic was looked up."""
        number = self._partitions.get(partition.topic)
        return number is None or partition.partition < number

    def _check_topics(self) -> None:
        """Checks that the topics exist, since brokers may create one for records that come."""
        chosen = (self._sources or ()) if self._target is None else (self._target,)
        if not chosen:
            return
        deadline = Deadline(self._letters.timeout, "--timeout")
        with closing(Connections(self._letters.settings)) as connections:
            found = cluster.topics(connections, chosen, deadline, Operation.WRITE)
        for topic in sorted(chosen):
            if topic not in found:
                raise TopicNotFoundError(
                    f"topic {topic!r}, which dead letters are to be replayed to, does not exist: "
                    "create it, or name another one (--to)"
                )
        self._partitions = {topic: info.partitions for topic, info in found.items()}

    def _write(self, consumer: Any, batch: list[_Planned]) -> None:
        if not self._dry_run:
            self._write_transaction(consumer, batch)
        for letter, (topic, _partition) in batch:
            self.done.written[topic] += 1
            self.done.timestamps_moved += letter.record_timestamp == 0

    def _write_transaction(self, consumer: Any, chosen: list[_Planned]) -> None:
        producer = self._begun_producer()
        producer.begin_transaction()
        try:
            self._produce(producer, chosen)
            self._commit(producer, consumer)
        except BaseException:
            leave_transaction(producer, _ABORT_SECONDS)
            raise

    def _produce(self, producer: Any, chosen: list[_Planned]) -> None:
        timeout = self._letters.timeout
        failed: list[tuple[KafkaError, DeadLetter, str]] = []

        def delivered(
            letter: DeadLetter, topic: str, error: KafkaError | None, _message: Any
        ) -> None:
            if error is not None:
                failed.append((error, letter, topic))

        for letter, (topic, partition) in chosen:
            on_delivery = partial(delivered, letter, topic)
            try:
                producer.produce(
                    topic,
                    letter.value,
                    letter.key,
                    partition,
                    on_delivery,
                    on_delivery,
                    producer_timestamp(letter.record_timestamp),
                    list(letter.own_headers),
                )
            except KafkaException as error:
                failed.append((error.args[0], letter, topic))
                break
        if flush_records(producer, timeout) or failed:
            what = f"replaying to {chosen[0][1].topic!r}: no answer within {timeout:g} s"
            if failed:
                cause, refused, to = failed[0]
                what = (
                    f"replaying dead letter {refused.position} to {to!r}: {cause.str()}. If it "
                    "is refused for what it is, change what the topic takes (max.message.bytes, "
                    "message.timestamp.*), or replay to another one (--to)"
                )
            raise WriteError(what)

    def _commit(self, producer: Any, consumer: Any) -> None:
        found = {partition: scan.progress for partition, scan in self._scans.items()}
        offsets = [
            confluent_kafka.TopicPartition(
                self._letters.name, partition, progress.offset, progress.text
            )
            for partition, progress in found.items()
        ]
        group = consumer.consumer_group_metadata()
        self._retried(
            "committing how far the topic is replayed",
            lambda seconds: producer.send_offsets_to_transaction(offsets, group, seconds),
        )
        self._retried("committing the replayed letters", producer.commit_transaction)
        self._committed = {p: (progress.offset, progress.text) for p, progress in found.items()}

    def _begun_producer(self) -> Any:
        """A producer for one transaction: see `_producer`."""
        producer, self._producer = self._producer, None
        if producer is None:
            # Before, since it would fence a replay that has begun meanwhile; after, since that may
            # have written more until it was fenced.
            self._check_alone()
            producer = self._new_producer()
            self._check_alone()
        return producer

    def _check_alone(self) -> None:
        if _plain(replay_offsets(self._letters, self._committed)) != self._committed:
            raise FencedByNewerRunError(
                f"another replay of {self._letters.name!r} has begun in the meantime: this one "
                "ends, and has left nothing half written"
            )

    def _new_producer(self) -> Any:
        settings = self._letters.settings.for_producer(self._group_id, _TRANSACTION_TIMEOUT_MS)
        # Each record in a batch of its own: which topics there are, and what they take, the letters
        # tell only as they are read.
        producer = Producer({**settings, "batch.num.messages": 1, "log_level": 0})
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

    def _before(
        self, bounds: dict[int, tuple[int, int]], committed: dict[int, CommittedOffset]
    ) -> dict[int, PartitionProgress]:
        """How far earlier replays came, by partition."""
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
        none = CommittedOffset(0, "")
        return {
            p: PartitionProgress.of(committed.get(p, none), low) for p, (low, _) in bounds.items()
        }


def _plain(committed: Mapping[int, CommittedOffset]) -> dict[int, tuple[int, str]]:
    """Offsets and texts; the Python client commits the zero byte that ends a text in C as well."""
    return {p: (one.offset, one.metadata.removesuffix("\0")) for p, one in committed.items()}


def _not_for_its_source(letter: DeadLetter) -> str | None:
    """Why a letter can't be written to its source topic; None if it can."""
    if letter.source is None:
        return "do not tell their source, as those of staged queries"
    if "cluster" in letter.error_headers:
        return "are of records in another cluster, whose topics may be others than those here"
    if "record" in letter.error_headers:
        return "hold what a row would have written, since the source record was deleted"
    return None
