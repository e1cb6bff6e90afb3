"""The topics that a transaction writes to: they must exist, and must not change until its end."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Final

from cachetools import LRUCache

from spark_eos._kafka.cluster import TopicInfo
from spark_eos._kafka.topic_cache import MissingTopicsError, TopicCache, why_impossible
from spark_eos._worker.librdkafka_errors import TransactionError, asking_cluster
from spark_eos._worker.records import TOPIC_IS_SOURCE, SourceRows, column_of
from spark_eos.acls import Operation

# Remember at most this many missing topics, because rows can name any topic.
MOST_NAMES: Final = 10_000
# Show at most this many characters of a topic's name; no valid name is longer.
_MOST_CHARACTERS: Final = 250
_LOOKING_UP: Final = "looking up target topics"
_NO_TOPIC: Final = "the row names no topic and the sink has no default (topic=)"


class TargetTopics:
    """The target topics of the open transaction, as they were when it first wrote to them."""

    def __init__(
        self, cache: TopicCache, refuses: Callable[[str, bool], str], absent: LRUCache[str, bool]
    ) -> None:
        self._cache = cache
        self._refuses = refuses
        self._absent = absent
        # True if this task has waited in vain for topics or partitions.
        self._waited = False
        self._missing: LRUCache[str, str] = LRUCache(MOST_NAMES)
        self._seen: dict[str, TopicInfo] = {}

    def refuse(self, part: SourceRows, firsts: Mapping[str | None, int]) -> None:
        """Refuse topics that no row may be written to; ``firsts`` has each topic's first row."""
        matched = column_of(part.rows, TOPIC_IS_SOURCE)
        for name, row in firsts.items():
            # `matched` is null if the row has no topic: the default topic was checked before.
            is_source = matched is not None and matched[row].as_py() is True
            if name is not None and (why := self._refuses(name, is_source)):
                raise TransactionError(
                    f"{part.position(row)}: the row is for {name!r}, {why}. A row's `topic` "
                    "column overrides topic= of the sink: drop the column, or compute it",
                    again=False,
                )

    def look_up(self, part: SourceRows, firsts: Mapping[str | None, int]) -> dict[str, TopicInfo]:
        """Return the target topics as they are now; ``firsts`` has each topic's first row."""
        if None in firsts:
            raise TransactionError(f"{part.position(firsts[None])}: {_NO_TOPIC}", again=False)
        with _looking_up(part):
            try:
                # Look topics up here: librdkafka would wait for a missing topic, or create it.
                return self._cache.get(_named(firsts), Operation.WRITE)
            except MissingTopicsError as error:
                row, name = min((firsts[name], name) for name in error.names)
                what = f"does not exist; create it first ({error.reason})"
                if (why := why_impossible(name, Operation.WRITE)) is not None:
                    what = f"can't be written to: {why}"
                raise TransactionError(
                    f"{part.position(row)}: the row's topic {name[:_MOST_CHARACTERS]!r} {what}",
                    again=False,
                ) from error

    def ready(self, part: SourceRows, names: Collection[str | None]) -> bool:
        """Return True if all topics are known to exist, or are not worth another wait."""
        if self._waited:
            return True
        unknown = _named(names) - self.known(names) - self._absent.keys()
        new = {name for name in unknown if why_impossible(name, Operation.WRITE) is None}
        with _looking_up(part):
            return not new or not new - self._cache.look(new, Operation.WRITE).keys()

    def known(self, names: Collection[str | None]) -> set[str]:
        """Return the topics that are known to exist, without asking again."""
        return {name for name in _named(names) if name in self._cache}

    # For dead letters -------------------------------------------------------------------------

    def missing(self, part: SourceRows, names: Collection[str | None]) -> Mapping[str | None, str]:
        """Return why rows can't be written to missing topics, by topic; None is always missing."""
        # A task waits for missing topics only once, and this process waits for each topic only
        # once. After that, each transaction only checks whether the topics exist now.
        named = _named(names)
        missing = {name: self._missing[name] for name in named if name in self._missing}
        new = named - self.known(named) - missing.keys()
        for name in sorted(new):
            if (why := why_impossible(name, Operation.WRITE)) is not None:
                missing[name] = f"topic {name[:_MOST_CHARACTERS]!r}: {why}"
        new -= missing.keys()
        with _looking_up(part):
            if new:
                new -= self._cache.look(new, Operation.WRITE).keys()
            if waited_for := set() if self._waited else new - self._absent.keys():
                missing |= self._wait_for(waited_for)
        for name in new:
            if name not in self._cache:
                missing.setdefault(name, f"topic {name!r} does not exist")
        self._missing.update(missing)
        found: dict[str | None, str] = {None: _NO_TOPIC}
        found.update(missing)
        return found

    def _wait_for(self, names: Collection[str]) -> dict[str, str]:
        """Wait for topics; return why rows can't be written to those that did not appear."""
        try:
            self._cache.get(names, Operation.WRITE)
        except MissingTopicsError as error:
            self._waited = True
            self._absent.update(dict.fromkeys(error.names, True))
            return {name: f"topic {name!r} does not exist ({error.reason})" for name in error.names}
        return {}

    def ready_for_partitions(self, wanted: Mapping[str, int]) -> bool:
        """Return True if `partitions` does not wait for more partitions."""
        return self._waited or all(_of_partitions(name) in self._absent for name in wanted)

    def partitions(
        self, names: Collection[str | None], wanted: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Return the number of partitions of each topic; all of them must exist."""
        known = _named(names)
        wanted = wanted or {}
        with asking_cluster(_LOOKING_UP):
            if not self.ready_for_partitions(wanted):
                self._waited = not self._cache.wait_for_partitions(wanted, Operation.WRITE)
                if self._waited:
                    self._absent.update(dict.fromkeys(map(_of_partitions, wanted), True))
            look = self._cache.refresh if wanted else self._cache.get
            return {n: t.partitions for n, t in look(known, Operation.WRITE).items()}

    def letter_partitions(self, topic: str) -> int:
        """Return the dead-letter topic's number of partitions, and check the topic from now on."""
        with asking_cluster("looking up the dead-letter topic"):
            try:
                topics = self._cache.get([topic], Operation.WRITE)
            except MissingTopicsError as error:
                raise TransactionError(
                    f"dead_letters.topic {topic!r} does not exist; create it first "
                    f"({error.reason})",
                    again=False,
                ) from error
        self.add(topics)
        return topics[topic].partitions

    def clear(self) -> None:
        """Forget the topics of the last transaction."""
        self._seen = {}

    def look_again(self) -> None:
        """Look topics up again that were missing: they may exist by now."""
        self._missing.clear()

    def add(self, topics: dict[str, TopicInfo]) -> None:
        """Remember topics as they are now, unless the transaction has already written to them."""
        for name, topic in topics.items():
            self._seen.setdefault(name, topic)

    def check(self) -> None:
        """Look the topics up again, and raise if one has changed."""
        with asking_cluster(_LOOKING_UP):
            now = self._cache.refresh(self._seen, Operation.WRITE)
        for name, before in self._seen.items():
            if now[name] != before:
                what = "has more partitions"
                if now[name].topic_id != before.topic_id:
                    what = "was deleted and recreated"
                raise TransactionError(
                    f"target topic {name!r} {what}: it was {before} and is {now[name]}", again=True
                )


def _looking_up(part: SourceRows) -> AbstractContextManager[None]:
    # The rows themselves may name topics that this client may not write to.
    return asking_cluster(f"{part.positions}: {_LOOKING_UP}")


def _named(names: Collection[str | None]) -> set[str]:
    return {name for name in names if name is not None}


def _of_partitions(topic: str) -> str:
    """Return the key under which to note that a topic's new partitions did not appear in time."""
    return f"{topic}/"
