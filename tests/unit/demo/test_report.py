"""The demonstration's orders, and what counts as exactly once in its report."""

from dataclasses import replace

import pytest

from spark_eos._demo.orders import make_orders
from spark_eos._demo.report import Finished, Report
from spark_eos.verify import Comparison, Difference, Finding

SOUND = Comparison(rows_expected=3, records_out=3, by_key=False, found={})
ENDED = Finished("orders", group_lag=0)


@pytest.mark.parametrize("kind", Difference)
def test_any_difference_is_not_exactly_once(kind: Difference) -> None:
    assert Report(ENDED, replace(SOUND, found={kind: Finding(0)})).exactly_once
    assert not Report(ENDED, replace(SOUND, found={kind: Finding(1)})).exactly_once


def test_unfinished_work_is_not_exactly_once() -> None:
    assert not Report(replace(ENDED, group_lag=1), SOUND).exactly_once
    assert not Report(replace(ENDED, open_transactions=1), SOUND).exactly_once
    assert Report(replace(ENDED, group_lag=None), SOUND).exactly_once


def test_what_can_not_be_judged_is_not_exactly_once() -> None:
    assert not Report(ENDED, replace(SOUND, unjudged={"deleted by retention": 1})).exactly_once


def test_orders_are_the_same_for_the_same_seed() -> None:
    assert list(make_orders(50, seed=7)) == list(make_orders(50, seed=7))
    assert list(make_orders(50, seed=7)) != list(make_orders(50, seed=8))
