"""The size of transactions after some took too long."""

import pytest

from spark_eos._client.settings import ClientSettings
from spark_eos._exactly_once.batch import _TransactionSizes
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.task_report import (
    OUTGROWN,
    TOO_SLOW,
    WRITTEN,
    JobOutcome,
    PartitionOutcome,
)
from spark_eos._worker.transaction_size import FULL, TransactionSize
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.options import Limits, Transactions

_MOST = Transactions(max_ms=50)


def _settings(transactions: Transactions = _MOST) -> WriterSettings:
    client = ClientSettings({"bootstrap.servers": "localhost:9"})
    return WriterSettings(client=client, group_id="g", topic="t", transactions=transactions)


def _outcome(*statuses: str) -> JobOutcome:
    return JobOutcome(
        {TopicPartition("in", i): PartitionOutcome(status) for i, status in enumerate(statuses)}
    )


def _limits(size: TransactionSize) -> tuple[int, int, int]:
    limits = size.limits(_MOST)
    return limits.max_records, limits.max_bytes, limits.max_ms


def test_transactions_shrink_to_a_limit_and_grow_with_each_batch() -> None:
    sizes, settings = _TransactionSizes(), _settings()
    limits = []
    for _ in range(4):
        sizes.shrink(settings, _outcome(TOO_SLOW))
        limits.append(_limits(sizes.size))
    assert limits == [(1_562, 1 << 20, 1), (24, 1 << 14, 1), (1, 671, 1), (1, 671, 1)]
    sizes.after([_outcome(TOO_SLOW), _outcome(WRITTEN)])
    assert _limits(sizes.size) == (1, 671, 1)
    grown = []
    for _ in range(9):
        sizes.after([_outcome(WRITTEN)])
        grown.append(_limits(sizes.size)[0])
    assert grown == [4, 16, 64, 256, 1_030, 4_166, 16_666, 100_000, 100_000]
    assert sizes.size == FULL


def test_transactions_of_any_size_shrink_to_a_single_row() -> None:
    sizes, settings = _TransactionSizes(), _settings(Transactions(max_records=10_000_000))
    for _ in range(4):
        sizes.shrink(settings, _outcome(TOO_SLOW))
    assert sizes.size.limits(settings.transactions).max_records == 1


def test_after_an_outage_a_tasks_transactions_grow_at_once() -> None:
    sizes, settings = _TransactionSizes(), _settings()
    for _ in range(3):
        sizes.shrink(settings, _outcome(TOO_SLOW))
    size, rows = sizes.size, []
    while size != FULL:
        rows.append(_limits(size)[0])
        size = size.after(1.0, _MOST)
    assert rows == [1, 4, 16, 64, 256, 1_030, 4_166, 16_666]
    # The next size could take too long.
    slow = TransactionSize(divisor=64)
    assert slow.after(_MOST.timeout_ms / 1000 / 15, _MOST) == slow


def test_transactions_that_have_grown_too_large_do_not_grow_again() -> None:
    sizes, settings = _TransactionSizes(), _settings()
    sizes.shrink(settings, _outcome(TOO_SLOW))
    assert sizes.size == TransactionSize(64, least=1)
    # Transactions of this size were committed, and then larger ones were too slow.
    sizes.shrink(settings, _outcome(OUTGROWN, WRITTEN))
    assert sizes.size == TransactionSize(64, least=64)
    assert sizes.size.after(0.0, _MOST) == TransactionSize(64, least=64)
    # Even this size is too large now, for one task at least.
    sizes.shrink(settings, _outcome(OUTGROWN, TOO_SLOW))
    assert sizes.size == TransactionSize(4096, least=64)
    # From batch to batch they grow, one step at a time.
    sizes.after([_outcome(WRITTEN)])
    sizes.after([_outcome(WRITTEN)])
    sizes.after([_outcome(WRITTEN)])
    assert sizes.size == TransactionSize(64, least=64)
    sizes.after([_outcome(WRITTEN)])
    assert sizes.size == TransactionSize(16, least=16)


@pytest.mark.parametrize("most", [1, 3, 10, 20, 50, 500, 2_000, 30_000])
def test_a_limit_that_nothing_reports_costs_no_attempt_that_counts(most: int) -> None:
    # Requests of more rows are never answered, as behind a broken middlebox.
    sizes, settings, counted = _TransactionSizes(), _settings(), 0
    for _ in range(20):
        first = size = sizes.size
        while _limits(size)[0] <= most and size.grown() != size:
            size = size.grown()
        if _limits(size)[0] <= most:
            break
        outcome = _outcome(TOO_SLOW if size == first else OUTGROWN)
        counted += not outcome.outgrown
        sizes.shrink(settings, outcome)
    # The last attempt, which wrote the rest, is not in this number.
    assert counted < Limits().max_attempts
