"""Which records were lost, by offsets alone."""

import pytest

from spark_eos import LostRecords
from spark_eos._batch.data_loss import lost_records
from spark_eos._batch.plan import BatchRange


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
    place = ("orders", 0)
    found = lost_records(BatchRange(1, {place: 5}, {place: 9}), {place: committed}, {place: first})
    assert found == (() if lost is None else (LostRecords("orders", 0, *lost),))
