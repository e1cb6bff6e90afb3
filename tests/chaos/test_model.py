"""Fence, read, write, commit, end: no order loses or doubles a record; each rule is needed."""

import pytest

from chaos.breakages import MUTATIONS
from chaos.model import Bounds, Breakage, explore

_BROKEN = [one for one in Breakage if one is not Breakage.NONE]


def test_no_order_of_steps_loses_or_doubles_a_record() -> None:
    found = explore()
    assert found.violation is None
    assert found.finished
    # Fewer would mean that steps are no longer tried.
    assert found.states > 100_000


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [Bounds(tasks=3, late=0), Bounds(late=2)], ids=str)
def test_wider_bounds_find_nothing_either(bounds: Bounds) -> None:
    found = explore(bounds=bounds)
    assert found.violation is None
    assert found.finished


@pytest.mark.parametrize("breakage", _BROKEN, ids=lambda one: one.value)
def test_each_rule_of_the_order_is_needed(breakage: Breakage) -> None:
    assert explore(breakage).violation is not None


def test_breakages_of_the_order_are_in_the_model() -> None:
    # The others are about staged files, dead letters and more partitions than one, or, as the
    # member id that is used again, the same rule once more.
    elsewhere = {
        "rejoin-with-the-same-member-id",
        "v6-sent-before-flush",
        "lingering-transactions-left",
        *(name for name, one in MUTATIONS.items() if one.front != "sink" or "dead-letter" in name),
    }
    missing = MUTATIONS.keys() - elsewhere - {one.value for one in _BROKEN}
    assert not missing
