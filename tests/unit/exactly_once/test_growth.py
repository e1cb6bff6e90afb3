"""The driver's work per partition does not grow with the number of partitions."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import pytest

from support.driver_work import DRIVER_WORK, ManyPartitions, Work

_SIZE, _FACTOR = 90, 4
# Work that is done once, and sorting, grow a little more or less.
_TOLERANCE = 1.25
# Done in C.
_UNCOUNTED: Final = {"pickling it"}


def _steps(function: Callable[[], object]) -> int:
    """The number of Python instructions in a call: unlike its time, the same on any machine."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    "work", [work for name, work in DRIVER_WORK.items() if name not in _UNCOUNTED]
)
def test_work_grows_with_partitions_and_no_faster(work: Work) -> None:
    small, large = (_steps(work(ManyPartitions.of(size))) for size in (_SIZE, _FACTOR * _SIZE))
    assert 0 < large <= _TOLERANCE * _FACTOR * small
