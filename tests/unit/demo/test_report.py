"""The demonstration's orders, and what counts as exactly once in its report."""

from dataclasses import replace

import pytest

from demo.orders import make_orders
from demo.report import Report
from spark_eos.verify import Comparison, Difference, Finding

SOUND = Comparison(rows_expected=3, records_out=3, by_key=False, found={})


@pytest.mark.parametrize("kind", Difference)
def test_any_difference_is_not_exactly_once(kind: Difference) -> None:
    assert Report(replace(SOUND, found={kind: Finding(0)}), group_lag=0).exactly_once
    assert not Report(replace(SOUND, found={kind: Finding(1)}), group_lag=0).exactly_once


def test_unfinished_work_is_not_exactly_once() -> None:
    assert not Report(SOUND, group_lag=1).exactly_once
    assert not Report(SOUND, open_transactions=1, group_lag=0).exactly_once
    assert Report(SOUND).exactly_once


def test_what_can_not_be_judged_is_not_exactly_once() -> None:
    assert not Report(
        replace(SOUND, unjudged={"deleted by retention": 1}), group_lag=0
    ).exactly_once


def test_orders_are_the_same_for_the_same_seed() -> None:
    assert list(make_orders(50, seed=7)) == list(make_orders(50, seed=7))
    assert list(make_orders(50, seed=7)) != list(make_orders(50, seed=8))
