"""Exactly-once PySpark Structured Streaming from Kafka to Kafka.

- `ExactlyOnceSink`: reads source topics and writes a streaming query's rows exactly once.
- `BatchReport`, `PartitionReport`: what became of one micro-batch.
- The errors that spark-eos raises, all of which are `SparkEosError`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_eos.batch_report import BatchReport, PartitionReport
    from spark_eos.errors import (
        AuthorizationError,
        CheckpointError,
        ConfigurationError,
        DeadlineExceededError,
        FencedByNewerRunError,
        ForeignMemberError,
        KafkaResponseError,
        OffsetGapError,
        OffsetsLostError,
        SparkEosError,
        TopicNotFoundError,
        UnsupportedBrokerError,
        UnsupportedPipelineError,
        WriteError,
    )
    from spark_eos.sink import ExactlyOnceSink

__all__ = [
    "AuthorizationError",
    "BatchReport",
    "CheckpointError",
    "ConfigurationError",
    "DeadlineExceededError",
    "ExactlyOnceSink",
    "FencedByNewerRunError",
    "ForeignMemberError",
    "KafkaResponseError",
    "OffsetGapError",
    "OffsetsLostError",
    "PartitionReport",
    "SparkEosError",
    "TopicNotFoundError",
    "UnsupportedBrokerError",
    "UnsupportedPipelineError",
    "WriteError",
]

# Where public names live that are no errors.
_HOMES = {
    "BatchReport": "batch_report",
    "ExactlyOnceSink": "sink",
    "PartitionReport": "batch_report",
}


def __getattr__(name: str) -> object:
    # Imported on first use: the pytest plugin and the command line lie in this package too, and
    # must load without pyspark.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = {
        "ExactlyOnceSink": "sink",
        "BatchReport": "batch_report",
        "PartitionReport": "batch_report",
    }
    return getattr(import_module(f"spark_eos.{home.get(name, 'errors')}"), name)
