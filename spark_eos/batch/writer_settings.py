"""What a task needs to know to write; travels to Spark's workers, pickled."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_eos.client.checks import check_flag, check_positive, check_text
from spark_eos.client.settings import ClientSettings
from spark_eos.errors import ConfigurationError
from spark_eos.kafka.transactional_ids import id_prefix

# Three rounds bring the default chunk_records from 100,000 to a single row.
_SMALLER: Final = 64
_LARGER = 4


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
        fail_on_data_loss: whether source records that were deleted before they were read end the
            query; if not, they are reported.
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
    fail_on_data_loss: bool

    @property
    def id_prefix(self) -> str:
        """What the query's transactional ids begin with."""
        return id_prefix(self.transactional_id_prefix, self.group_id)

    def in_smaller_chunks(self) -> "WriterSettings":
        """The same settings with transactions of a small part of the size and the age."""
        return replace(
            self,
            chunk_records=max(1, self.chunk_records // _SMALLER),
            chunk_bytes=max(1, self.chunk_bytes // _SMALLER),
            chunk_ms=max(1, self.chunk_ms // _SMALLER),
        )

    def in_larger_chunks(self, most: "WriterSettings") -> "WriterSettings":
        """The same settings with larger transactions, up to those of ``most``."""
        return replace(
            self,
            chunk_records=min(most.chunk_records, self.chunk_records * _LARGER),
            chunk_bytes=min(most.chunk_bytes, self.chunk_bytes * _LARGER),
            chunk_ms=min(most.chunk_ms, self.chunk_ms * _LARGER),
        )


def writer_settings(
    *,
    kafka: Mapping[str, Any],
    group_id: str,
    topic: str | None,
    transactional_id_prefix: str,
    chunk_records: int,
    chunk_bytes: int,
    chunk_ms: int,
    transaction_timeout_ms: int,
    connect_timeout: float,
    max_block_ms: int,
    metadata_max_idle_ms: int,
    worker_directory: str | None,
    fail_on_data_loss: bool,
) -> WriterSettings:
    """Checks a user's options; they are described at `spark_eos.ExactlyOnceSink`.

    Raises:
        ConfigurationError: an option can't be used as given.
    """
    check_text("group_id", group_id)
    check_text("transactional_id_prefix", transactional_id_prefix)
    check_flag("fail_on_data_loss", fail_on_data_loss)
    if topic is not None:
        check_text("topic", topic)
    check_positive(
        chunk_records=chunk_records,
        chunk_bytes=chunk_bytes,
        chunk_ms=chunk_ms,
        transaction_timeout_ms=transaction_timeout_ms,
        connect_timeout=connect_timeout,
        max_block_ms=max_block_ms,
        metadata_max_idle_ms=metadata_max_idle_ms,
    )
    if chunk_ms >= transaction_timeout_ms:
        raise ConfigurationError(
            f"chunk_ms={chunk_ms} must be below transaction_timeout_ms="
            f"{transaction_timeout_ms}, or the brokers abort transactions before they end"
        )
    settings = WriterSettings(
        client=ClientSettings(kafka),
        group_id=group_id,
        topic=topic,
        transactional_id_prefix=transactional_id_prefix,
        transaction_timeout_ms=transaction_timeout_ms,
        chunk_records=chunk_records,
        chunk_bytes=chunk_bytes,
        chunk_ms=chunk_ms,
        worker_directory=worker_directory,
        connect_timeout=connect_timeout,
        max_block_ms=max_block_ms,
        metadata_max_idle_ms=metadata_max_idle_ms,
        fail_on_data_loss=fail_on_data_loss,
    )
    settings.client.check_with_librdkafka()
    return settings
