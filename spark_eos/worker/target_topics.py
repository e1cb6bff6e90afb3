"""The topics that a transaction writes to: they must exist, and must not change meanwhile."""

from collections.abc import Collection

from spark_eos.acls import Operation
from spark_eos.errors import SparkEosError
from spark_eos.kafka.cluster import TopicInfo
from spark_eos.kafka.topic_cache import MissingTopicsError, TopicCache
from spark_eos.worker.librdkafka_errors import TransactionError, is_transient
from spark_eos.worker.records import SourceRows


class TargetTopics:
    """Target topics of the open transaction, as they were when it first wrote to them.

    Args:
        cache: The producer's cached topics.
        sources: The topics that the query reads, which it may not write.
    """

    def __init__(self, cache: TopicCache, sources: Collection[str]) -> None:
        self._cache = cache
        self._sources = sources
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
            # Looked up here: librdkafka would wait for a missing topic, or create it.
            wanted = {name for name in names if name is not None}
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


def cluster_failure(what: str, error: SparkEosError) -> TransactionError:
    """The error for a failed call to the cluster; another round may cure only a timeout."""
    return TransactionError(f"{what}: {error}", again=is_transient(error))
