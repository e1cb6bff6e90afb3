"""What a task needs to know to write; travels to Spark's workers, pickled."""

from dataclasses import dataclass, replace
from typing import Final

from spark_eos.client.checks import check_flag, check_positive, check_text
from spark_eos.client.settings import ClientSettings
from spark_eos.errors import ConfigurationError
from spark_eos.kafka.transactional_ids import id_prefix

# Three rounds bring the default max_transaction_records from 100,000 to a single row.
_SMALLER: Final = 64
_LARGER: Final = 4
_SIZES: Final = ("max_transaction_records", "max_transaction_bytes", "max_transaction_ms")
_NUMBERS: Final = (
    *_SIZES,
    "transaction_timeout_ms",
    "connect_timeout_ms",
    "max_block_ms",
    "metadata_max_idle_ms",
)


@dataclass(frozen=True, kw_only=True)
class WriterSettings:
    """Settings of the writing side, the same for every task of a query.

    Attributes:
        client: Kafka client settings.
        group_id: the consumer group whose offsets move with the output.
        topic: default target topic; None if every row names its own.
        transactional_id_prefix: what transactional ids begin with.
        transaction_timeout_ms: after so long the broker aborts an open transaction.
        max_transaction_records: rows after which a transaction is committed and another begun.
        max_transaction_bytes: the same, bytes of keys, values and headers.
        max_transaction_ms: the same, milliseconds since it began.
        worker_directory: where a host keeps its node id and slots; None for the default.
        connect_timeout_ms: milliseconds allowed to reach the cluster.
        max_block_ms: milliseconds to wait for topics that are missing.
        metadata_max_idle_ms: milliseconds after which topics not used are forgotten.
        fail_on_data_loss: whether source records that were deleted before they were read end the
            query; if not, they are reported.

    Raises:
        ConfigurationError: a setting can't be used as given.
    """

    client: ClientSettings
    group_id: str
    topic: str | None
    transactional_id_prefix: str
    transaction_timeout_ms: int
    max_transaction_records: int
    max_transaction_bytes: int
    max_transaction_ms: int
    worker_directory: str | None
    connect_timeout_ms: int
    max_block_ms: int
    metadata_max_idle_ms: int
    fail_on_data_loss: bool

    def __post_init__(self) -> None:
        check_text("group_id", self.group_id)
        check_text("transactional_id_prefix", self.transactional_id_prefix)
        check_flag("fail_on_data_loss", self.fail_on_data_loss)
        if self.topic is not None:
            check_text("topic", self.topic)
        check_positive(**{name: getattr(self, name) for name in _NUMBERS})
        if self.max_transaction_ms >= self.transaction_timeout_ms:
            raise ConfigurationError(
                f"max_transaction_ms={self.max_transaction_ms} must be below "
                f"transaction_timeout_ms={self.transaction_timeout_ms}, or the brokers abort "
                "transactions before they end"
            )

    @property
    def id_prefix(self) -> str:
        """What the query's transactional ids begin with."""
        return id_prefix(self.transactional_id_prefix, self.group_id)

    def with_smaller_transactions(self) -> "WriterSettings":
        """The same settings with transactions of a small part of the size and the age."""
        return replace(self, **{name: max(1, getattr(self, name) // _SMALLER) for name in _SIZES})

    def with_larger_transactions(self, most: "WriterSettings") -> "WriterSettings":
        """The same settings with larger transactions, up to those of ``most``."""
        return replace(
            self,
            max_transaction_records=min(
                most.max_transaction_records, self.max_transaction_records * _LARGER
            ),
            max_transaction_bytes=min(
                most.max_transaction_bytes, self.max_transaction_bytes * _LARGER
            ),
            max_transaction_ms=min(most.max_transaction_ms, self.max_transaction_ms * _LARGER),
        )
