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


@pytest.mark.proves("staged-driver-frozen")
@pytest.mark.parametrize(
    ("point", "records", "error"),
    [
        pytest.param("staged", 60, "FencedByNewerRunError", id="before its copy counts"),
        # Its successor has written that copy, which is what counts for both, and has gone.
        pytest.param(
            "staged-commit", 60, "CONCURRENT_STREAM_LOG_UPDATE", id="before its copy is written"
        ),
        # Its successor has staged the next batch, too.
        pytest.param("staged", 90, "PATH_NOT_FOUND", id="and its copy is swept"),
    ],
)
def test_a_driver_that_wakes_up_beside_its_successor(
    flow: Flow, tmp_path: Path, point: str, records: int, error: str
) -> None:
    flow.produce(map(record, range(records)))
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
    assert error in older.output(), older.output()[-4000:]
    counts = range(6, records // 5 + 1, 6)
    assert totals_of(flow) == Counter((f"c{c}", n) for c in range(5) for n in counts)
    assert flow.open_transactions() == []


def _stopped(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return "\nState:\tT" in status
