"""Kafka messages that kafka-python does not ship, from JSON schemas beside this file.

TxnOffsetCommit 0-6 (KIP-447, KIP-1319), ConsumerGroupHeartbeat 0-1 and ConsumerGroupDescribe
0-1 (KIP-848). Field names follow Kafka's own schemas, in snake case.
"""

import sys

from kafka.protocol.api_message import ApiMessage

_schemas = sys.modules[__name__]


class TxnOffsetCommitRequest(ApiMessage, load_json=_schemas):
    """Commits offsets inside an open transaction; topic names up to v5, topic ids from v6."""



class TxnOffsetCommitResponse(ApiMessage, load_json=_schemas):
    """One error code per partition; there is no top-level error."""


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=_schemas):
    """Joins (epoch 0), beats, leaves (-1) or leaves for a while (-2, static members)."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=_schemas):
    """The member's epoch, the heartbeat interval and, when it changed, the assignment."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_schemas):
    """Asks a coordinator for groups' members, epochs and assignments."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_schemas):
    """Group state and epochs, and each member's epoch, assignment and target."""


__all__ = [
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
]
