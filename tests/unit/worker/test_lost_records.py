"""Lost records, determined from offsets alone."""

import pytest

from spark_eos import LostRecords
from spark_eos._delivery.data_loss_check import lost_records, unreadable
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.plan import BatchRange


@pytest.mark.parametrize(
    ("committed", "first", "lost"),
    [
        (5, 5, None),
        (5, 7, (5, 7)),
        # What an earlier attempt has written is not lost.
        (8, 7, None),
        (6, 20, (6, 9)),
        (9, 20, None),
    ],
)
def test_lost_records(committed: int, first: int, lost: tuple[int, int] | None) -> None:
    orders = TopicPartition("orders", 0)
    batch = BatchRange(1, {orders: 5}, {orders: 9})
    found = lost_records(batch, {orders: committed}, {orders: first})
    assert found == (() if lost is None else (LostRecords("orders", 0, *lost),))


@pytest.mark.parametrize(
    ("committed", "first", "start"),
    [
        # Spark would read offset 5, which is deleted, although all rows up to 7 are written.
        (8, 7, 5),
        (7, 7, 5),
        # Rows that are not written are lost rather than unreadable.
        (6, 7, None),
        (8, 5, None),
    ],
)
def test_written_records_that_spark_can_no_longer_read(
    committed: int, first: int, start: int | None
) -> None:
    orders = TopicPartition("orders", 0)
    batch = BatchRange(1, {orders: 5}, {orders: 9})
    found = unreadable(batch, {orders: committed}, {orders: first})
    assert found == ({} if start is None else {orders: start})
