"""The errors that spark-eos raises.

Errors raised while a query starts reach the caller unchanged. When an error ends a running query,
Spark raises its own ``StreamingQueryException``, with the error's class and text in the message.
"""

import logging
from collections.abc import Iterable
from typing import Any

from spark_eos.acls import Acl


def escaped(text: str, keep: str = "\n\t") -> str:
    r"""Escape characters that move a terminal's cursor or reorder its text.

    Args:
        text: A text that may contain untrusted input.
        keep: Control characters that are not escaped.

    Example:
        >>> escaped("red " + chr(27) + "[31m")
        'red \\x1b[31m'
    """
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode()
        for character in text
    )


def with_entry(text: str, entry: str) -> str:
    """Append to a text the command that explains an entry.

    Example:
        >>> with_entry("no such partition", "EOS17")
        'no such partition [more: spark-eos explain EOS17]'
    """
    return f"{text} [more: spark-eos explain {entry}]".lstrip()


def text_of(error: object) -> str:
    """Return an error's text for use in another message, without the command at its end."""
    return error.text if isinstance(error, PrintableError) else str(error)


def warn(
    logger: logging.Logger, entry: str, text: str, *arguments: object, trace: bool = False
) -> None:
    """Log a warning that ends with the command that explains it.

    Args:
        logger: The caller's logger.
        entry: The code of the entry that ``spark-eos explain`` prints.
        text: The message, as for ``Logger.warning``.
        arguments: The message's arguments, as for ``Logger.warning``.
        trace: Whether to also log the exception that is being handled.

    Example:
        >>> warn(logging.getLogger("spark_eos.example"), "EOS54", "smaller: %d", 7)
    """
    texts = (
        argument.text if isinstance(argument, PrintableError) else argument
        for argument in arguments
    )
    logger.warning(with_entry(text, entry), *texts, exc_info=trace, stacklevel=2)


class PrintableError(Exception):
    """An error whose text contains no control characters except newlines and tabs.

    The text may quote rows, names and answers from other systems, and is shown on terminals.

    Attributes:
        entry: The code for ``spark-eos explain``, which ``str`` appends; "" if there is none.
    """

    entry: str = ""

    @property
    def text(self) -> str:
        """The text without the command, for use in another error's text."""
        return escaped(super().__str__())

    def __str__(self) -> str:
        return with_entry(self.text, self.entry) if self.entry else self.text


class SparkEosError(PrintableError):
    """Base class of all errors that spark-eos raises on purpose.

    For example:

        try:
            query = sink.write(rows).start()
        except SparkEosError as error:
            sys.exit(str(error))  # names the cause and the setting to change
    """

    entry = "EOS01"


class ConfigurationError(SparkEosError, ValueError):
    """An option or client setting can't be used as given.

    Examples:
        >>> from spark_eos._client.settings import ClientSettings
        >>> ClientSettings({})
        Traceback (most recent call last):
            ...
        spark_eos.errors.ConfigurationError: kafka needs 'bootstrap.servers', such as \
'localhost:9092' [more: spark-eos explain EOS02]
    """

    entry = "EOS02"


class AuthenticationError(SparkEosError):
    """A broker refuses this client, or this client refuses a broker.

    The cause is a certificate, password, token or protocol; the text names the listener and the
    setting to change.

    For example:

        ExactlyOnceSink(kafka={..., "sasl.password": "wrong"}, ...).write(rows)
        # AuthenticationError: host:9093 (SASL_SSL PLAIN as alice): the broker refuses the
        # credentials: check sasl.username and sasl.password
    """

    entry = "EOS03"


class FormatVersionError(SparkEosError):
    """Offsets or a checkpoint were written by a version of spark-eos that uses another format.

    For example:

        sink.write(rows).start()
        # FormatVersionError: names what was found, its format, and how to continue
    """

    entry = "EOS13"


class UnsupportedPipelineError(SparkEosError, ValueError):
    """The query's columns or plan can't be written exactly once.

    For example:

        sink.write(orders.groupBy("key").count())
        # UnsupportedPipelineError: names the operator, here an aggregation
    """

    entry = "EOS08"


class UnsupportedBrokerError(SparkEosError):
    """The cluster lacks a protocol version or feature that exactly-once delivery needs.

    For example:

        sink.write(rows)  # on brokers before Kafka 4.0, or with transaction.version below 2
        # UnsupportedBrokerError: the text has the command that upgrades the feature
    """

    entry = "EOS07"


class TopicNotFoundError(SparkEosError):
    """A source or target topic does not exist, or no longer exists.

    spark-eos never creates source or target topics.

    For example:

        ExactlyOnceSink(..., topic="no-such-topic").write(rows)
        # TopicNotFoundError: at once; only a running query waits for limits.max_block_ms
    """

    entry = "EOS09"


class ForeignMemberError(SparkEosError):
    """Another consumer is a live member of the group, or was one while the query ran.

    For example:

        Consumer({..., "group.id": "order-processors"}).subscribe(["orders"])  # anywhere
        ExactlyOnceSink(..., group_id="order-processors").write(rows).start()
        # ForeignMemberError: names the consumer's client id and host
    """

    entry = "EOS10"


class FencedByNewerRunError(SparkEosError):
    """Another run of the same group has taken over its member.

    For example:

        query = sink.write(rows).start()  # then the same query starts on another host
        query.awaitTermination()
        # StreamingQueryException: ... FencedByNewerRunError: names the other run's host
    """

    entry = "EOS11"


class OffsetGapError(SparkEosError):
    """The group's committed offset is below the offset up to which Spark has already read.

    For example:

        # kafka-consumer-groups.sh --reset-offsets --to-earliest ..., with the old checkpoint
        query = sink.write(rows).start()
        # OffsetGapError: start with an empty checkpoint to write again from the group's offsets
    """

    entry = "EOS14"


class OffsetsLostError(SparkEosError):
    """The group's committed offsets no longer show which records have been written.

    They were deleted, have expired, were set by another client, or belong to a topic that was
    deleted and recreated.

    For example:

        # kafka-consumer-groups.sh --delete-offsets --topic orders:0 ..., with an empty checkpoint
        query = sink.write(rows).start()
        # OffsetsLostError: find out what was written (spark-eos verify) and set the offsets. If
        # the offsets of all partitions and the checkpoint are gone, the query starts as a new one.
    """

    entry = "EOS15"


class RecordsLostError(SparkEosError):
    """Source records were deleted before they were read, by retention or by an administrator.

    For example:

        ExactlyOnceSink(..., fail_on_data_loss=False)  # reports the gap and continues instead
    """

    entry = "EOS16"


class CheckpointError(SparkEosError):
    """Spark's checkpoint can't be read, or belongs to another query.

    For example:

        ExactlyOnceSink(..., group_id="b", checkpoint_location="/checkpoints/of-group-a")
        # CheckpointError at the start: use one checkpoint for one query
    """

    entry = "EOS12"


class QueryStoppedError(SparkEosError):
    """The query was stopped while a batch was being written.

    For example:

        query.stop()  # uncommitted rows are written at the next start
    """

    entry = "EOS18"


class QueryFailedError(SparkEosError):
    """A query has failed; raised by `spark_eos.run`.

    The text is the class and text of the error that ended the query, and the entry is that error's
    entry. Spark's ``StreamingQueryException``, with stack traces and plan, is the ``__context__``.

    For example:

        spark_eos.run(query)
        # QueryFailedError: WriteError: batch 3 of group 'orders': ...
    """

    entry = "EOS19"

    def __init__(self, text: str, entry: str = "") -> None:
        super().__init__(text)
        self.entry = entry or self.entry


class WriteError(SparkEosError):
    """A row, or the transaction that holds it, can't be written.

    For example:

        sink.write(rows.withColumn("partition", F.lit(99)))  # the topic has fewer partitions
        # WriteError: names the row's source topic, partition and offset
    """

    entry = "EOS17"


class VerificationError(SparkEosError):
    """Input and output can't be verified, because they can't be read or matched.

    For example:

        # spark-eos verify exits with status 2; the text names the record or the topic
    """

    entry = "EOS20"


class SchemaError(SparkEosError, ValueError):
    """Columns don't fit a schema, or a record doesn't fit its schema.

    Columns that don't fit raise this error when the frame is created. A record that doesn't fit
    ends the query, unless a direct or mirrored query has ``dead_letters``, which get the record, or
    with ``errors="column"``, which puts the text into the row's ``error``.

    Example::

        registry.encode(rows, "value", subject="orders-prices-value")
        # SchemaError: names the field, its type, and the type that the schema needs
    """

    entry = "EOS28"


class RegistryError(SparkEosError):
    """The schema registry can't be reached, or refuses to answer; no record is to blame.

    Example::

        SchemaRegistry({"url": "http://unreachable:8081"}).decode(rows, "value", subject="orders")
        # RegistryError: names the address, how long it was tried, and the last failure
    """

    entry = "EOS29"


class DeadlineExceededError(SparkEosError, TimeoutError):
    """The cluster gave no final answer within the time limit.

    For example:

        ExactlyOnceSink(kafka={"bootstrap.servers": "unreachable:9092"}, ...).write(rows)
        # DeadlineExceededError: names the setting that limits the wait, and the last failure
    """

    entry = "EOS06"


class KafkaResponseError(SparkEosError):
    """A broker answered with an error that retrying can't fix.

    Attributes:
        code: Kafka's error code.

    Examples:
        >>> KafkaResponseError("offsets of group 'orders': 24 INVALID_GROUP_ID", 24).code
        24
    """

    entry = "EOS05"

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = int(code)

    def __reduce__(self) -> tuple[type["KafkaResponseError"], tuple[str, int]]:
        # By default, exceptions are pickled with the arguments of Exception, which lack the code.
        return type(self), (self.text, self.code)


class AuthorizationError(KafkaResponseError):
    """No ACL allows the operation; the text names the missing ACLs and how to grant them.

    Attributes:
        missing: The missing ACLs, as far as they are known.

    Examples:
        >>> from spark_eos.acls import read_group
        >>> error = AuthorizationError("refused", 30, [read_group("orders")])
        >>> print(*error.missing)
        Read on group 'orders'
    """

    entry = "EOS04"

    def __init__(self, message: str, code: int, missing: Iterable[Acl]) -> None:
        super().__init__(message, code)
        self.missing = tuple(missing)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text, self.code, self.missing)
