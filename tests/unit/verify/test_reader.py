"""Where the verifier takes a partition's end to be."""

from typing import Any

from confluent_kafka import KafkaError, Message
from kafka import TopicPartition

from spark_eos.verify.records import Reader


def test_a_replica_that_lags_does_not_end_a_partition() -> None:
    partition = TopicPartition("orders", 0)
    reader: Any = Reader.__new__(Reader)
    reader._bases, reader._short = {partition: 0}, {}
    error = KafkaError(KafkaError._PARTITION_EOF)
    end = Message(topic="orders", partition=0, offset=7, error=error)
    assert reader._sort([end], {partition: (0, 9)}) == ([], set())
    assert reader._sort([end], {partition: (0, 7)}) == ([], {partition})
    # Open transactions hold it up.
    reader._short = {partition: 7}
    assert reader._sort([end], {partition: (0, 9)}) == ([], {partition})
