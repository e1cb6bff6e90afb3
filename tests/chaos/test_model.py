"""Fence, read, write, commit, end: no order loses or doubles a record; each rule is needed."""

import pytest

from chaos.breakages import MUTATIONS
from chaos.model import Bounds, Breakage, explore

_BROKEN = [one for one in Breakage if one is not Breakage.NONE]


# Fewer states would mean that steps are no longer tried.
@pytest.mark.parametrize(
    ("bounds", "states"),
    [
        (Bounds(late=0), 25_000),
        pytest.param(Bounds(), 110_000, marks=pytest.mark.slow),
        pytest.param(Bounds(late=2), 190_000, marks=pytest.mark.slow),
        pytest.param(Bounds(tasks=3, late=0), 250_000, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_no_order_of_steps_loses_or_doubles_a_record(bounds: Bounds, states: int) -> None:
    found = explore(bounds=bounds)
    assert found.violation is None
    assert found.finished
    assert found.states > states


# The others also take a second each.
_AT_ONCE = (Breakage.NOT_FLUSHED, Breakage.READ_BEFORE_FENCING, Breakage.END_FIRST)


@pytest.mark.parametrize(
    "breakage",
    [pytest.param(one, marks=() if one in _AT_ONCE else pytest.mark.slow) for one in _BROKEN],
    ids=lambda one: one.value,
)
def test_each_rule_of_the_order_is_needed(breakage: Breakage) -> None:
    assert explore(breakage).violation is not None


def test_breakages_of_the_order_are_in_the_model() -> None:
    # The other mutations concern staged files, dead letters or several partitions, or, like the
    # reused member id, break the same rule again.
    elsewhere = {
        "rejoin-with-the-same-member-id",
        "v6-sent-before-flush",
        "lingering-transactions-left",
        *(name for name, one in MUTATIONS.items() if one.front != "sink" or "dead-letter" in name),
    }
    missing = MUTATIONS.keys() - elsewhere - {one.value for one in _BROKEN}
    assert not missing
