"""The fates of transactions, by the control records in the log."""

from types import SimpleNamespace
from typing import Any

from kafka import TopicPartition
from kafka.record.default_records import DefaultRecordBatch

from spark_eos.verify.control_records import Fate, Uncommitted, uncommitted

_TRANSACTIONAL, _CONTROL = 0x10, 0x30


def _emptied(offset: int, attributes: int) -> bytes:
    """A batch of producer 7 from which Kafka's log cleaner has removed all records."""
    header = DefaultRecordBatch.HEADER_STRUCT
    length = header.size - DefaultRecordBatch.AFTER_LEN_OFFSET
    return bytes(header.pack(offset, length, 0, 2, 0, attributes, 0, 0, 0, 7, 0, 0, 0))


def test_a_marker_that_the_cleaner_has_emptied() -> None:
    """Without DescribeConfigs, nobody knows that the topic is compacted."""
    log = _emptied(0, _TRANSACTIONAL) + _emptied(1, _CONTROL)
    cluster: Any = SimpleNamespace(ask=lambda *_: log, timeout=1.0)
    found = uncommitted(cluster, TopicPartition("out", 0), 0, 2, lambda _: None)
    assert [*found] == [Uncommitted(0, 0, Fate.UNKNOWN, 7)]
