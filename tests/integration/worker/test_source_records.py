"""Source records are read again by position."""

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker import source_records
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.source_records import SourceRecords
from support.flow import Flow, transaction
from support.members import writer_settings
from support.sinks import changed


@pytest.fixture
def records(flow: Flow) -> Iterator[SourceRecords]:
    with closing(SourceRecords(writer_settings(flow))) as found:
        yield found


def test_any_position_in_any_order(flow: Flow, records: SourceRecords) -> None:
    for partition in (0, 1):
        flow.produce(
            range(500), partition=partition, key=b"k", headers=[("h", b"1")], timestamp=1_000
        )
    offsets = [0, 0, 7, 499, 3, *random.Random(4).sample(range(500), 20)]
    for partition in (1, 0):
        for offset in offsets:
            found = records.fetch(TopicPartition(flow.source, partition), offset)
            assert found is not None
            assert found.value == b"%d" % offset
            assert (found.key, found.headers, found.timestamp) == (b"k", (("h", b"1"),), 1_000)


def test_ascending_positions_are_read_on(
    flow: Flow, records: SourceRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[Any] = []

    class Noting(confluent_kafka.Consumer):
        def assign(self, partitions: list[Any]) -> None:
            moves.append(partitions)
            super().assign(partitions)

    monkeypatch.setattr(source_records, "Consumer", Noting)
    flow.produce(range(20_000), partition=0)
    for offset in range(0, 20_000, 100):
        found = records.fetch(TopicPartition(flow.source, 0), offset)
        assert found is not None
        assert found.value == b"%d" % offset
    assert len(moves) == 1


def test_a_record_that_was_deleted(flow: Flow, records: SourceRecords) -> None:
    flow.produce(range(20), partition=0)
    admin = AdminClient(flow.kafka)
    before = confluent_kafka.TopicPartition(flow.source, 0, 10)
    admin.delete_records([before])[before].result(60)
    assert records.fetch(TopicPartition(flow.source, 0), 5) is None
    found = records.fetch(TopicPartition(flow.source, 0), 12)
    assert found is not None
    assert found.value == b"12"


def test_a_record_of_an_aborted_transaction(flow: Flow, records: SourceRecords) -> None:
    # A query with isolation.level=read_uncommitted has read the record.
    with transaction(flow.bootstrap_servers, commit=False) as producer:
        producer.produce(flow.source, b"0", partition=0)
    found = records.fetch(TopicPartition(flow.source, 0), 0)
    assert found is not None
    assert found.value == b"0"


def test_brokers_that_are_away(flow: Flow) -> None:
    nowhere = {**flow.kafka, "bootstrap.servers": "localhost:1"}
    settings = writer_settings(flow)
    settings = changed(settings, client=type(settings.client)(nowhere), connect_timeout_ms=2_000)
    with closing(SourceRecords(settings)) as records, pytest.raises(TransactionError) as failure:
        records.fetch(TopicPartition(flow.source, 0), 0)
    assert failure.value.again
    assert f"source {flow.source}-0 offset 0 again" in str(failure.value)
