"""How long the steps of a batch take."""

import time

import pytest

from spark_eos._progress.delivery import StepClock


def test_a_steps_parts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([1.0, 1.5, 7.0, 7.25])
    monkeypatch.setattr(time, "monotonic", lambda: next(readings))
    clock = StepClock()
    for _ in range(2):
        with clock.step("plan"):
            pass
    assert clock.milliseconds == {"plan": 750.0}
