"""What spark-eos raises."""

from collections.abc import Iterable
from typing import Any

from spark_eos.acls import Acl


class SparkEosError(Exception):
    """Base of every error that spark-eos raises on purpose."""


class ConfigurationError(SparkEosError, ValueError):
    """An option or client setting can't be used as given."""


class AuthenticationError(SparkEosError):
    """A broker and this client do not accept one another.

    Certificates, passwords, tokens, or protocols that differ; the text names the listener.
    """


class UnsupportedPipelineError(SparkEosError, ValueError):
    """The query's columns or plan can't be written exactly once."""


class UnsupportedBrokerError(SparkEosError):
    """The cluster lacks a protocol version or feature that exactly-once needs."""


class TopicNotFoundError(SparkEosError):
    """A source or target topic does not exist, or does not exist any more."""


class ForeignMemberError(SparkEosError):
    """Somebody else's consumer is a live member of the group, or was one while the query ran."""


class FencedByNewerRunError(SparkEosError):
    """Another run of the same group has taken its members over."""


class OffsetGapError(SparkEosError):
    """The group's committed offset lies before what Spark has read."""


class OffsetsLostError(SparkEosError):
    """The group's committed offsets do not tell any more what is written.

    They have been deleted, have expired, were set by somebody else, or belong to a topic that was
    deleted and created anew.
    """


class RecordsLostError(SparkEosError):
    """Source records were deleted before they were read: by retention, or by an administrator."""


class CheckpointError(SparkEosError):
    """Spark's checkpoint can't be read, or belongs to another query."""


class QueryStoppedError(SparkEosError):
    """The query was stopped while a batch was being written."""


class WriteError(SparkEosError):
    """A row, or the transaction that holds it, can't be written."""


class VerificationError(SparkEosError):
    """Input and output can't be judged: they can't be read, or not be matched."""


class DeadlineExceededError(SparkEosError, TimeoutError):
    """The cluster gave no final answer in the time allowed."""


class KafkaResponseError(SparkEosError):
    """A broker answered with an error that retrying does not cure.

    Attributes:
        code: Kafka's error code.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = int(code)

    def __reduce__(self) -> tuple[type["KafkaResponseError"], tuple[str, int]]:
        # Exceptions are pickled by what they were told at the top, which lacks the code.
        return type(self), (str(self), self.code)


class AuthorizationError(KafkaResponseError):
    """A broker refuses what no ACL allows; the text names the ACLs and how to grant them.

    Attributes:
        missing: The ACLs, as far as they are known.
    """

    def __init__(self, message: str, code: int, missing: Iterable[Acl]) -> None:
        super().__init__(message, code)
        self.missing = tuple(missing)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.code, self.missing)
