"""Kafka messages that kafka-python lacks, made from the JSON schemas in this directory."""

# TxnOffsetCommit 0-6 (KIP-447, KIP-1319), ConsumerGroupHeartbeat 0-1 and ConsumerGroupDescribe 0-1
# (KIP-848).

import sys
import types
import warnings
from typing import Any

from spark_eos._client.kafka_python import ApiMessage


def _message(name: str) -> Any:
    def body(namespace: dict[str, Any]) -> None:
        namespace["__module__"] = __name__

    with warnings.catch_warnings():
        # kafka-python reads the schema in a deprecated way.
        warnings.simplefilter("ignore", DeprecationWarning)
        return types.new_class(name, (ApiMessage,), {"load_json": sys.modules[__name__]}, body)


# Commits offsets inside an open transaction; topic names up to v5, topic ids from v6.
TxnOffsetCommitRequest = _message("TxnOffsetCommitRequest")
# One error code per partition; there is no top-level error.
TxnOffsetCommitResponse = _message("TxnOffsetCommitResponse")
# Joins (epoch 0), stays, leaves (-1), or leaves temporarily (-2, static members only).
ConsumerGroupHeartbeatRequest = _message("ConsumerGroupHeartbeatRequest")
# The member epoch, the heartbeat interval and, if it changed, the assignment.
ConsumerGroupHeartbeatResponse = _message("ConsumerGroupHeartbeatResponse")
ConsumerGroupDescribeRequest = _message("ConsumerGroupDescribeRequest")
# Group state and epochs, and each member's epoch, assignment and target.
ConsumerGroupDescribeResponse = _message("ConsumerGroupDescribeResponse")
