"""Two runs of one query that stages its batches: the newer goes on, the older writes nothing."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.flow import Flow
from support.queries import QueryProcess
from support.staging import record, totals_of

# A Spark for each run.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("point", ["staged", "ledger"])
def test_a_driver_that_wakes_up_beside_its_successor(
    flow: Flow, tmp_path: Path, point: str
) -> None:
    """It was frozen before its copy counted, or when it did and nothing of it was written."""
    flow.produce(map(record, range(90)))
    settings: dict[str, Any] = {
        "main": "support.staged_main",
        "pipeline": "totals",
        "mode": "update",
    }
    older = QueryProcess(flow, tmp_path / "older.log", kill=[point, 1, "SIGSTOP"], **settings)
    with older:
        older.until(lambda: _stopped(older.process.pid), f"the point {point!r}", 120)
        with QueryProcess(flow, tmp_path / "newer.log", **settings) as newer:
            assert newer.wait(120) == 0, newer.output()
        os.killpg(older.process.pid, signal.SIGCONT)
        assert older.wait(120) > 0, older.output()
    assert "FencedByNewerRunError" in older.output(), older.output()[-4000:]
    counts = range(6, 19, 6)
    assert totals_of(flow) == Counter((f"c{c}", n) for c in range(5) for n in counts)
    assert flow.open_transactions() == []


def _stopped(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return "\nState:\tT" in status
