"""Which dead letters a replay is to write, and how far earlier ones have come."""

# The letters of one home (DeadLetter.home) are replayed by one query, with a group of its own whose
# offsets are its progress. So the letters of other homes, which a replay leaves, stay due.

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from spark_eos._admin.dead_letter_topic import DeadLetter, DeadLetterTopic, dead_letter
from spark_eos._batch.sources import Sources
from spark_eos._client.printable import listed
from spark_eos._delivery.renewal import renew_unattended
from spark_eos._kafka import cluster
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.list_offsets import end_offsets, start_offsets
from spark_eos._kafka.offset_metadata import CommittedOffset, has_text
from spark_eos._kafka.offsets import group_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.acls import Operation, replay_group
from spark_eos.errors import (
    AuthorizationError,
    FormatVersionError,
    OffsetsLostError,
    RecordsLostError,
    TopicNotFoundError,
)

# Errors show at most so many characters of a header.
_SHOWN: Final = 100


class ReplayProgress:
    """How far a topic's letters were replayed: the offsets of each home's group, asked for once."""

    def __init__(self, connections: Connections, letters: DeadLetterTopic) -> None:
        self._connections = connections
        self._letters = letters
        self._offsets: dict[str, dict[int, CommittedOffset]] = {}
        self._topics = cluster.topics(connections, [letters.name], self._deadline())

    def _deadline(self) -> Deadline:
        return Deadline(self._letters.timeout, "--timeout")

    def offsets(self, home: str) -> Mapping[int, CommittedOffset]:
        """The offset of the first letter that is not replayed yet, by partition if it is known."""
        if home not in self._offsets:
            if home:
                self.offsets("")  # earlier versions had that group alone
            group = replay_group(self._letters.name, home)
            own = [
                TopicPartition(name, partition)
                for name, topic in self._topics.items()
                for partition in range(topic.partitions)
            ]
            ids = {name: topic.topic_id for name, topic in self._topics.items()}
            # Not stable: the next replay ends what a killed one has left open.
            found = group_offsets(
                self._connections, group, own, ids, self._deadline(), stable=False
            )
            _check_texts(group, found)
            self._offsets[home] = {partition: one for (_, partition), one in found.items()}
        return self._offsets[home]

    def now(self, home: str) -> dict[int, int]:
        """Where the next letters are, by partition: after those replayed or deleted meanwhile."""
        self._offsets.pop(home, None)
        first = start_offsets(self._connections, [self._letters.name], self._deadline())
        found = {partition: offset for (_, partition), offset in first.items()}
        own = self.offsets(home).items()
        return found | {p: max(one.offset, found.get(p, 0)) for p, one in own}

    def check_whole(self, home: str) -> None:
        """Refuses offsets past the topic's ends, and some that were set without the others."""
        offsets, name = self.offsets(home), self._letters.name
        group = replay_group(name, home)
        # Asked for after the offsets, which another replay may have moved on meanwhile.
        for partition, end in end_offsets(self._connections, [name], self._deadline()).items():
            own = offsets.get(partition.partition)
            if own is not None and end is not None and own.offset > end.high_watermark:
                command = Sources().how_to_set(group, {partition: end.high_watermark})
                raise RecordsLostError(
                    f"{partition} ends at {end.high_watermark}, and group {group!r} has replayed "
                    f"it up to {own.offset}, so nothing is written: brokers have lost the last "
                    "records, or the topic was created anew. Set the group's offset to the end, or "
                    f"to where it is to begin ({command})"
                )
        missing = sorted({*range(self._topics[name].partitions)} - offsets.keys())
        if missing and not all(map(has_text, offsets.values())):
            names = listed(f"{name}:{partition}" for partition in missing)
            first = TopicPartition(name, missing[0])
            raise OffsetsLostError(
                f"offsets of group {group!r} were set, and others are missing ({names}), so "
                "how far those partitions were replayed is not known. Nothing is written. Set "
                f"them, too ({Sources().how_to_set(group, {first: 'N'})})"
            )

    def knows(self, home: str, letter: DeadLetter) -> bool:
        """Whether it is known how far a letter's partition was replayed."""
        return letter.partition in self.offsets(home)

    def due(self, home: str, letter: DeadLetter) -> bool:
        """Whether no replay has written a letter, as far as is known."""
        own = self.offsets(home).get(letter.partition)
        return own is None or letter.offset >= own.offset

    def renew_others(self, homes: Collection[str]) -> None:
        """Commits the other homes' offsets anew, since brokers forget them by their age."""
        for home in self._offsets.keys() - homes:
            group = replay_group(self._letters.name, home)
            renew_unattended(self._connections, group, self._deadline())

    def partitions_of(self, targets: Collection[str]) -> dict[str, int]:
        """Numbers of partitions of topics to write to; brokers may create one that is missing."""
        if not targets:
            return {}
        found = cluster.topics(self._connections, targets, self._deadline(), Operation.WRITE)
        for topic in sorted(targets):
            if topic not in found:
                raise TopicNotFoundError(
                    f"topic {topic!r}, which dead letters are to be replayed to, does not exist: "
                    "create it, or name another one (--to)"
                )
        return {topic: info.partitions for topic, info in found.items()}


@contextmanager
def replay_progress(letters: DeadLetterTopic) -> Iterator[ReplayProgress]:
    """How far a topic's letters were replayed, as long as the connections are open."""
    with closing(Connections(letters.settings)) as connections:
        yield ReplayProgress(connections, letters)


def _check_texts(group: str, found: Mapping[TopicPartition, CommittedOffset]) -> None:
    """Refuses offsets of the first replays, which had one group for all letters."""
    # These noted which letters below they had left, or nothing: confluent-kafka's zero byte.
    old = {p: one for p, one in found.items() if one.metadata and one.metadata[0] != "{"}
    for partition, (offset, text) in sorted(old.items())[:1]:
        raise FormatVersionError(
            f"an earlier version of spark-eos has replayed {partition.topic!r} with group "
            f"{group!r}, for example {partition} up to {offset}"
            f"{text.strip(chr(0)).replace('left', ' without', 1)}. This version has a group for "
            "each source topic. So that no letter is written twice, nothing is written. Replay "
            f"with that version what it left. Then set these offsets in group '{group}/SOURCE' of "
            f"each source topic, and at last in {group!r} again, which clears their notes "
            "(kafka-consumer-groups.sh --reset-offsets --group GROUP --topic TOPIC:PARTITION "
            "--to-offset N --execute)"
        )


@dataclass(kw_only=True)
class ReplayPlan:
    """Letters that a replay is to write, and those that it leaves or passes over, by home."""

    # The homes whose letters are wanted, chosen by the caller: whoever may write to a dead-letter
    # topic chooses what its headers say. Without, all but ""; that one only if `homeless`.
    sources: Collection[str] = ()
    homeless: bool = False
    limit: int | None = None
    skip_omitted: bool = False  # pass over letters without their value or headers
    from_beginning: bool = False  # where the progress is not known
    ends: dict[int, int] = field(default_factory=dict)  # by partition
    letters: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    omitted: Counter[str] = field(default_factory=Counter)
    never: int = 0  # number of letters that are never replayed
    stopped: str = ""  # why the replay ends before a letter

    def read(self, letters: DeadLetterTopic, progress: ReplayProgress) -> None:
        """Plans for the letters that are there now."""
        unknown: set[tuple[str, int]] = set()
        # Those of a topic that was cut may all seem to be replayed.
        wanted: set[str] = set()
        with letters.consumer() as consumer:
            bounds = letters.bounds(consumer)
            self.ends = {partition: low for partition, (low, _) in bounds.items()}
            for message in letters.messages(consumer):
                letter = dead_letter(message)
                home = letter.home
                if home is not None and self._wants(home):
                    wanted.add(home)
                if home is None:
                    self.never += 1
                elif not self._wants(home):
                    with suppress(AuthorizationError):  # of a group that this one need not see
                        self.left[home] += progress.due(home, letter)
                elif progress.due(home, letter):
                    if not self.from_beginning and not progress.knows(home, letter):
                        unknown.add((home, letter.partition))
                    elif not self._take(home, letter):
                        break
                self.ends[letter.partition] = letter.offset + 1
            else:
                self.ends |= {p: max(end, self.ends[p]) for p, (_, end) in bounds.items()}
        if unknown:
            raise _unknown(letters.name, unknown)
        for home in sorted(wanted):
            progress.check_whole(home)

    def _wants(self, home: str) -> bool:
        return home in self.sources if self.sources else home != "" or self.homeless

    def _take(self, home: str, letter: DeadLetter) -> bool:
        """Takes a letter, or passes over it; False if the replay ends before it."""
        omitted = letter.error_headers.get("omitted")
        if omitted is not None and self.skip_omitted:
            self.omitted[home] += 1
        elif omitted is not None:
            self.stopped = (
                f"dead letter {letter.position} does not hold its whole record (omitted: "
                f"{omitted[:_SHOWN]}), so it can't be replayed, and the replay ends before it. "
                "Read its source record yourself, and give --skip-omitted to pass over it"
            )
            return False
        elif self.letters.total() == self.limit:
            return False
        else:
            self.letters[home] += 1
        return True

    @property
    def homes(self) -> list[str]:
        """The homes whose letters are to be written or passed over."""
        return sorted(self.letters.keys() | self.omitted.keys())

    def ends_after(self, progress: ReplayProgress, home: str) -> dict[int, int]:
        """Where the replay of a home ends; another one may have come further meanwhile."""
        now = progress.now(home)
        return {p: max(end, now.get(p, 0)) for p, end in self.ends.items()}


def _unknown(topic: str, unknown: Collection[tuple[str, int]]) -> OffsetsLostError:
    names = [f"{topic}-{p} in group {replay_group(topic, home)!r}" for home, p in sorted(unknown)]
    return OffsetsLostError(
        f"how far dead letters were replayed is not known ({listed(names)}): either this is the "
        "first replay of letters of their source topic, or these offsets have expired since the "
        "last one (offsets.retention.minutes), and letters may have been replayed. Nothing is "
        "written. --from-beginning begins at the first letter there"
    )
