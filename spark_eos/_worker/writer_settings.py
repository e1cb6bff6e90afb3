"""The settings a task needs to write; they are pickled and sent to Spark's workers."""

import math
from dataclasses import dataclass

from spark_eos._client.checks import check_text, check_topic
from spark_eos._client.commands import Group
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.deadline import Deadline, group_deadline
from spark_eos._kafka.transactional_ids import id_prefix
from spark_eos._worker.dead_letter_settings import DeadLetterSettings
from spark_eos.errors import ConfigurationError
from spark_eos.options import Limits, Transactions


@dataclass(frozen=True, kw_only=True)
class WriterSettings:
    """Settings of the writing side, the same for every task of a query."""

    client: ClientSettings
    group_id: str
    # None if every row names its own topic.
    topic: str | None
    transactions: Transactions = Transactions()
    limits: Limits = Limits()
    fail_on_data_loss: bool = True
    # None if the source is in the same cluster.
    source_client: ClientSettings | None = None
    dead_letters: DeadLetterSettings | None = None
    # Topics in the target cluster that the query reads by name, or keeps its progress in.
    source_topics: frozenset[str] = frozenset()
    moved_from: str | None = None

    def __post_init__(self) -> None:
        check_text("group_id", self.group_id)
        if self.topic is not None:
            check_topic("topic", self.topic)
        if self.moved_from is not None:
            check_text("moved_from", self.moved_from)
        if self.dead_letters is not None and self.dead_letters.topic == self.topic:
            raise ConfigurationError(
                f"dead_letters.topic={self.topic!r} is the target topic: dead letters need a "
                "separate topic"
            )

    @property
    def target_topics(self) -> tuple[str, ...]:
        """The target topics that are known without looking at the query's rows."""
        dead_letters = None if self.dead_letters is None else self.dead_letters.topic
        return tuple(topic for topic in (self.topic, dead_letters) if topic is not None)

    def refuses_target(self, topic: str, matched: bool) -> str:  # noqa: FBT001
        """Return why rows may not go to a topic, else ""; ``matched``: a pattern selects it."""
        if self.dead_letters is not None and topic == self.dead_letters.topic:
            return "the query's dead-letter topic, which holds only dead letters"
        if matched or topic in self.source_topics:
            return (
                "a topic that the query reads or keeps its progress in, so the query would feed "
                "itself"
            )
        return ""

    @property
    def group(self) -> Group:
        """The query's group, for messages."""
        return Group(self.group_id, self.client.principal)

    @property
    def id_prefix(self) -> str:
        """The prefix of the query's own transactional ids."""
        return id_prefix(self.transactions.id_prefix, self.group_id)

    def group_deadline(self, at_most: float = math.inf) -> Deadline:
        """Return a deadline, from now, for a call to the group; ``at_most`` is in seconds."""
        return group_deadline(self.limits.group_timeout_ms, at_most)

    def connect_deadline(self) -> Deadline:
        """Return a deadline, from now, for a call that does not concern the group."""
        return Deadline(self.limits.connect_timeout_ms / 1000, "connect_timeout_ms")
