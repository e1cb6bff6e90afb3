"""What a task needs to know to write; travels to Spark's workers, pickled."""

from dataclasses import dataclass

from spark_eos.config import ClientSettings
from spark_eos.identity import id_prefix


@dataclass(frozen=True)
class WriterSettings:
    """Settings of the writing side, the same for every task of a query.

    Attributes:
        client: Kafka client settings.
        group_id: the consumer group whose offsets move with the output.
        topic: default target topic; None if every row names its own.
        transactional_id_prefix: what transactional ids begin with.
        transaction_timeout_ms: after so long the broker aborts an open transaction.
        chunk_records: rows after which a transaction is committed and another begun.
        chunk_bytes: the same, bytes of keys, values and headers.
        chunk_ms: the same, milliseconds since it began.
        worker_directory: where a host keeps its node id and slots; None for the default.
        connect_timeout: seconds allowed to reach the cluster.
        max_block_ms: milliseconds to wait for topics that are missing.
        metadata_max_idle_ms: milliseconds after which topics not used are forgotten.
    """

    client: ClientSettings
    group_id: str
    topic: str | None
    transactional_id_prefix: str
    transaction_timeout_ms: int
    chunk_records: int
    chunk_bytes: int
    chunk_ms: int
    worker_directory: str | None
    connect_timeout: float
    max_block_ms: int
    metadata_max_idle_ms: int

    @property
    def id_prefix(self) -> str:
        """What the query's transactional ids begin with."""
        return id_prefix(self.transactional_id_prefix, self.group_id)
