"""The topics that a transaction writes to: they must exist, and must not change meanwhile."""

from collections.abc import Callable, Collection, Mapping

from spark_eos.acls import Operation
from spark_eos.errors import PrintableError, SparkEosError
from spark_eos.kafka.cluster import TopicInfo
from spark_eos.kafka.topic_cache import MissingTopicsError, TopicCache
from spark_eos.worker.librdkafka_errors import TransactionError, is_transient
from spark_eos.worker.records import SourceRows


class WaitAheadError(PrintableError):
    """Topics have to be waited for: an open transaction should be ended before."""


class TargetTopics:
    """Target topics of the open transaction, as they were when it first wrote to them.

    Args:
        cache: The producer's cached topics.
        refuses: Why rows may not be for a topic; "" if they may.
        absent: Topics that did not exist in earlier tasks; updated in place.
    """

    def __init__(
        self,
        cache: TopicCache,
        refuses: Callable[[str], str],
        absent: set[str] | None = None,
    ) -> None:
        self._cache = cache
        self._refuses = refuses
        self._absent: set[str] = set() if absent is None else absent
        self._missing: dict[str | None, str] = {
            None: "the row names no topic and the sink has no default (topic=)"
        }
        self._seen: dict[str, TopicInfo] = {}

    def look_up(self, found: SourceRows, topics: list[str | None]) -> dict[str, TopicInfo]:
        """The rows' target topics as they are now.

        Args:
            found: The rows.
            topics: Each row's target topic.

        Raises:
            TransactionError: A row names no topic, one that the query reads, or a missing one; or
                the cluster does not answer.
        """
        names = set(topics)
        wanted = self._allowed(names)
        if len(wanted) < len(names):
            row = next(row for row, name in enumerate(topics) if name not in wanted)
            name = topics[row]
            reason = "the row names no topic and the sink has no default (topic=)"
            if name is not None:
                reason = (
                    f"the row is for {name!r}, {self._refuses(name)}. A row's `topic` column is "
                    "its target, before topic= of the sink: drop it, or compute it"
                )
            raise TransactionError(f"{found.position(row)}: {reason}", again=False)
        try:
            # Looked up here: librdkafka would wait for a missing topic, or create it.
            return self._cache.get(wanted, Operation.WRITE)
        except MissingTopicsError as error:
            row = next(row for row, wanted in enumerate(topics) if wanted in error.names)
            raise TransactionError(
                f"{found.position(row)}: the row's topic {topics[row]!r} does not exist; create it "
                f"first ({error.reason})",
                again=False,
            ) from error
        except SparkEosError as error:
            raise cluster_failure("looking up target topics", error) from error

    # For dead letters -------------------------------------------------------------------------

    def missing(self, names: Collection[str | None]) -> Mapping[str | None, str]:
        """Why topics can't be written to that do not exist, by topic; for None too.

        Waits for a topic that does not exist only once in this process; each later task looks
        whether it exists now.

        Raises:
            TransactionError: The cluster does not answer, or does not allow to write.
        """
        new = self._allowed(names) - self._missing.keys()
        try:
            before = new & self._absent
            if before:
                self._note_missing(before - self._cache.look(before, Operation.WRITE).keys(), "")
                self._absent -= before - self._missing.keys()
                new -= self._missing.keys()
            while new:
                try:
                    self._cache.get(new, Operation.WRITE)
                    break
                except MissingTopicsError as error:
                    self._absent.update(error.names)
                    self._note_missing(error.names, f" ({error.reason})")
                    new -= set(error.names)
        except SparkEosError as error:
            raise cluster_failure("looking up target topics", error) from error
        return {name: why for name, why in self._missing.items() if name in names}

    def check_known(self, names: Collection[str | None]) -> None:
        """Checks that `missing` does not have to wait.

        Raises:
            WaitAheadError: It has to.
            TransactionError: The cluster does not answer, or does not allow to write.
        """
        new = self._allowed(names) - self._missing.keys()
        new = self._cache.to_ask_for(new - self._absent)
        try:
            if new and new - self._cache.look(new, Operation.WRITE).keys():
                raise WaitAheadError
        except SparkEosError as error:
            raise cluster_failure("looking up target topics", error) from error

    def looked_up(self, names: Collection[str | None]) -> set[str]:
        """Those of the topics that are known to exist, without asking again."""
        found = {name for name in names if name is not None and name in self._cache}
        return found - self._missing.keys()

    def check_awaited(self, wanted: Mapping[str, int]) -> None:
        """Checks that `partitions` does not have to wait.

        Raises:
            WaitAheadError: It has to.
        """
        if any(_of_partitions(name) not in self._absent for name in wanted):
            raise WaitAheadError

    def _allowed(self, names: Collection[str | None]) -> set[str]:
        return {name for name in names if name is not None and not self._refuses(name)}

    def _note_missing(self, names: Collection[str], why: str) -> None:
        for name in names:
            self._missing[name] = f"topic {name!r} does not exist{why}"

    def partitions(
        self, names: Collection[str | None], wanted: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Numbers of partitions of the topics that exist.

        Args:
            names: The topics' names.
            wanted: Numbers of partitions to wait for, by topic: once for each topic in this
                process, and at most max_block_ms. Others are asked for without waiting.

        Raises:
            TransactionError: The cluster does not answer.
        """
        known = self._allowed(names) - self._missing.keys()
        wanted = wanted or {}
        new = {n: number for n, number in wanted.items() if _of_partitions(n) not in self._absent}
        try:
            if new:
                self._cache.wait_for_partitions(new, Operation.WRITE)
                self._absent.update(map(_of_partitions, new))
            look = self._cache.refresh if wanted else self._cache.get
            return {n: t.partitions for n, t in look(known, Operation.WRITE).items()}
        except SparkEosError as error:
            raise cluster_failure("looking up target topics", error) from error

    def letter_partitions(self, topic: str) -> int:
        """The number of partitions of the dead-letter topic, which is written to from now on.

        Raises:
            TransactionError: It does not exist, or the cluster does not answer or allow it.
        """
        try:
            found = self._cache.get([topic], Operation.WRITE)
        except MissingTopicsError as error:
            raise TransactionError(
                f"dead_letter_topic {topic!r} does not exist; create it first ({error.reason})",
                again=False,
            ) from error
        except SparkEosError as error:
            raise cluster_failure("looking up the dead-letter topic", error) from error
        self.add(found)
        return found[topic].partitions

    def clear(self) -> None:
        """Forgets the topics of the last transaction."""
        self._seen = {}

    def add(self, topics: dict[str, TopicInfo]) -> None:
        """Remembers topics as they are; those written to before stay as they were then."""
        self._seen = topics | self._seen

    def check(self) -> None:
        """Looks the topics up again.

        Raises:
            TransactionError: One has changed; if it still exists, another round may write.
        """
        try:
            now = self._cache.refresh(self._seen, Operation.WRITE)
        except SparkEosError as error:
            raise cluster_failure("looking up target topics", error) from error
        for name, before in self._seen.items():
            if now[name] != before:
                what = "has more partitions"
                if now[name].topic_id != before.topic_id:
                    what = "was deleted and recreated"
                raise TransactionError(
                    f"target topic {name!r} {what}: it was {before} and is {now[name]}", again=True
                )


def _of_partitions(topic: str) -> str:
    """The entry for partitions that a topic did not get in time; no topic has such a name."""
    return f"{topic}/"


def cluster_failure(what: str, error: SparkEosError) -> TransactionError:
    """The error for a failed call to the cluster; another round may cure only a timeout."""
    return TransactionError(f"{what}: {error}", again=is_transient(error))
