"""The size of transactions after some took too long."""

from spark_eos._client.settings import ClientSettings
from spark_eos._exactly_once.batch import _TransactionSize
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.task_report import TOO_SLOW, WRITTEN, JobOutcome, PartitionOutcome
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.options import Transactions


def _settings(transactions: Transactions) -> WriterSettings:
    client = ClientSettings({"bootstrap.servers": "localhost:9"})
    return WriterSettings(client=client, group_id="g", topic="t", transactions=transactions)


def _outcome(status: str) -> JobOutcome:
    return JobOutcome({TopicPartition("in", 0): PartitionOutcome(status)})


def test_they_get_smaller_up_to_a_limit_and_grow_with_each_batch() -> None:
    size, settings = _TransactionSize(), _settings(Transactions(max_ms=50))
    assert size.of(settings) == settings
    limits = []
    for _ in range(4):
        size.shrink(settings)
        now = size.of(settings).transactions
        limits.append((now.max_records, now.max_bytes, now.max_ms))
    assert limits == [(1_562, 1 << 20, 1), (24, 1 << 14, 1), (1, 671, 1), (1, 671, 1)]
    size.after([_outcome(TOO_SLOW), _outcome(WRITTEN)])
    assert size.of(settings).transactions == now
    grown = []
    for _ in range(8):
        size.after([_outcome(WRITTEN)])
        grown.append(size.of(settings).transactions.max_records)
    assert grown == [4, 16, 64, 256, 1_030, 4_166, 16_666, 100_000]
    assert size.of(settings) == settings


def test_they_come_down_to_a_single_row_from_any_size() -> None:
    size, settings = _TransactionSize(), _settings(Transactions(max_records=10_000_000))
    for _ in range(4):
        size.shrink(settings)
    assert size.of(settings).transactions.max_records == 1
