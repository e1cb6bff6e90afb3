"""Exactly-once into Kafka for PySpark Structured Streaming.

- `ExactlyOnceSink`: reads source topics and writes a streaming query's rows exactly once.
- `Transactions`, `DeadLetters`, `ProgressTopic`, `Limits`: arguments of the sink.
- `print_batch`: prints one line for each batch, as an ``on_batch``.
- `run`: waits in a script until a query ends; Ctrl-C and SIGTERM stop the query cleanly.
- `session_builder`: a Spark session that can read Kafka.
- `BatchReport`, `PartitionReport`, `LostRecords`: the outcome of one micro-batch.
- `Status`: the state of a query in its cluster, as `ExactlyOnceSink.status` returns it.
- The errors that spark-eos raises, all subclasses of `SparkEosError`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_eos._batch_report import BatchReport, LostRecords, PartitionReport
    from spark_eos._sink.sink import ExactlyOnceSink
    from spark_eos._sink.writer import ExactlyOnceWriter
    from spark_eos._spark.dead_letter_functions import guarded
    from spark_eos._spark.original_records import original_records
    from spark_eos._spark.session import session_builder
    from spark_eos._status.status import Status, UnknownGroupError
    from spark_eos.errors import (
        AuthenticationError,
        AuthorizationError,
        CheckpointError,
        ConfigurationError,
        DeadlineExceededError,
        FencedByNewerRunError,
        ForeignMemberError,
        FormatVersionError,
        KafkaResponseError,
        OffsetGapError,
        OffsetsLostError,
        QueryFailedError,
        RecordsLostError,
        RegistryError,
        SchemaError,
        SparkEosError,
        TopicNotFoundError,
        UnsupportedBrokerError,
        UnsupportedPipelineError,
        WriteError,
    )
    from spark_eos.jobs.running import run
    from spark_eos.observability.speaking import print_batch
    from spark_eos.options import DeadLetters, Limits, ProgressTopic, Transactions

__all__ = [
    "AuthenticationError",
    "AuthorizationError",
    "BatchReport",
    "CheckpointError",
    "ConfigurationError",
    "DeadLetters",
    "DeadlineExceededError",
    "ExactlyOnceSink",
    "ExactlyOnceWriter",
    "FencedByNewerRunError",
    "ForeignMemberError",
    "FormatVersionError",
    "KafkaResponseError",
    "Limits",
    "LostRecords",
    "OffsetGapError",
    "OffsetsLostError",
    "PartitionReport",
    "ProgressTopic",
    "QueryFailedError",
    "RecordsLostError",
    "RegistryError",
    "SchemaError",
    "SparkEosError",
    "Status",
    "TopicNotFoundError",
    "Transactions",
    "UnknownGroupError",
    "UnsupportedBrokerError",
    "UnsupportedPipelineError",
    "WriteError",
    "guarded",
    "original_records",
    "print_batch",
    "run",
    "session_builder",
]

# Modules of the public names that are not in spark_eos.errors.
_HOMES = {
    "DeadLetters": "options",
    "Limits": "options",
    "ProgressTopic": "options",
    "Transactions": "options",
    "BatchReport": "_batch_report",
    "ExactlyOnceSink": "_sink.sink",
    "ExactlyOnceWriter": "_sink.writer",
    "LostRecords": "_batch_report",
    "PartitionReport": "_batch_report",
    "Status": "_status.status",
    "UnknownGroupError": "_status.status",
    "guarded": "_spark.dead_letter_functions",
    "original_records": "_spark.original_records",
    "print_batch": "observability.speaking",
    "run": "jobs.running",
    "session_builder": "_spark.session",
}


def __getattr__(name: str) -> object:
    # Import on first use: the pytest plugin and the command line are part of this package, but
    # must load without pyspark.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"spark_eos.{_HOMES.get(name, 'errors')}"), name)
