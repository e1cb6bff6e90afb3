"""Where the verifier takes a partition's end to be."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from kafka import TopicPartition

from spark_eos.verify import verifier
from spark_eos.verify.records import READ_COMMITTED, READ_UNCOMMITTED, Reader


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


@pytest.mark.parametrize(
    ("isolation_level", "expected"),
    [(READ_COMMITTED, {TopicPartition("orders", 0): 7}), (READ_UNCOMMITTED, {})],
)
def test_open_transactions_hold_up_only_committed_reads(
    monkeypatch: pytest.MonkeyPatch, isolation_level: str, expected: dict[TopicPartition, int]
) -> None:
    def begin(*given: Any) -> None:
        raise LookupError(given[3])

    settled = SimpleNamespace(short={TopicPartition("orders", 0): 7})
    monkeypatch.setattr(verifier, "settle", lambda *_: settled)
    monkeypatch.setattr(verifier, "Outputs", lambda *_: None)
    monkeypatch.setattr(verifier, "Reader", begin)
    work: Any = verifier._Verification.__new__(verifier._Verification)
    work.source = work.target = SimpleNamespace(lows=lambda _: {})
    work.records = work.matching = work.inputs = work.outputs = work.group_id = None
    work.isolation_level, work.watch = isolation_level, lambda *_: None
    with pytest.raises(LookupError) as begun:
        work.reconcile(None)
    assert begun.value.args == (expected,)
