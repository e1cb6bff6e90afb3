"""The demonstration's orders, and how it counts them."""

from collections import Counter
from dataclasses import replace

import pytest

from spark_eos.demo.orders import make_orders, order_id
from spark_eos.demo.verdict import Tally, tally

PERFECT = Tally(
    orders_in=3,
    orders_out=3,
    duplicates=0,
    missing=0,
    unknown=0,
    open_transactions=0,
    group_lag=0,
)


def ids(*numbers: int) -> Counter[str]:
    return Counter(map(order_id, numbers))


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        (ids(0, 1, 2), PERFECT),
        (ids(0, 1, 1, 2), replace(PERFECT, orders_out=4, duplicates=1)),
        (ids(0, 2), replace(PERFECT, orders_out=2, missing=1)),
        (ids(0, 1, 1), replace(PERFECT, duplicates=1, missing=1)),
        (ids(0, 1, 3), replace(PERFECT, missing=1, unknown=1)),
        (ids(0, 1, 2, 3), replace(PERFECT, orders_out=4, unknown=1)),
        (ids(), replace(PERFECT, orders_out=0, missing=3)),
    ],
)
def test_tally_counts_exactly(counts: Counter[str], verdict: Tally) -> None:
    assert tally(3, counts, group_lag=0) == verdict
    assert verdict.exactly_once == (verdict is PERFECT)


def test_unfinished_work_is_not_exactly_once() -> None:
    assert not replace(PERFECT, group_lag=1).exactly_once
    assert not replace(PERFECT, open_transactions=1).exactly_once
    assert replace(PERFECT, group_lag=None).exactly_once


def test_orders_are_the_same_for_the_same_seed() -> None:
    assert list(make_orders(50, seed=7)) == list(make_orders(50, seed=7))
    assert list(make_orders(50, seed=7)) != list(make_orders(50, seed=8))
