"""Staged queries that die, wake up, or find something other than what they left."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.flow import Flow
from support.queries import QueryProcess
from support.staged_main import HALFWAY, POINTS, half_of
from support.staging import record, totals_of
from support.stored_files import STAGED

# A Spark for each run.
pytestmark = pytest.mark.slow

_RECORDS = 90
_SLOWLY: dict[str, Any] = {"pipeline": "slowly", "mode": "append"}
# Mounts of its own, which end with it.
_UNSHARED = ["unshare", "--user", "--map-root-user", "--mount"]


def _query(flow: Flow, tmp_path: Path, name: str, **settings: Any) -> QueryProcess:
    log = tmp_path / f"{name}.log"
    chosen = {"pipeline": "totals", "mode": "update", **settings}
    return QueryProcess(flow, log, main="support.staged_main", **chosen)


def _killed(flow: Flow, tmp_path: Path, point: str, batch: int, **settings: Any) -> None:
    with _query(flow, tmp_path, f"{point}-{batch}", kill=[point, batch], **settings) as query:
        assert query.wait() == -9, query.output()


def _finished(flow: Flow, tmp_path: Path, name: str = "last", **settings: Any) -> list[Any]:
    with _query(flow, tmp_path, name, **settings) as query:
        assert query.wait() == 0, query.output()
        return query.reports()


def _ended_with(flow: Flow, tmp_path: Path, words: str, **settings: Any) -> None:
    before = Counter(flow.values())
    with _query(flow, tmp_path, "refused", **settings) as query:
        assert query.wait() != 0
        assert words in query.output(), query.output()[-4000:]
    assert Counter(flow.values()) == before


def _parts(flow: Flow, batch: int) -> dict[str, int]:
    """The complete files of a batch's copies, with their sizes."""
    part = re.compile(rf"{STAGED}/{batch}-[^/]+/part-[^/]+")
    return {path: size for path, size in flow.stored.sizes(STAGED).items() if part.fullmatch(path)}


def _each_total_once(flow: Flow, records: int = _RECORDS) -> None:
    """Each batch adds six records of each customer and writes each customer's total once.

    Totals are equal in each attempt at a batch, but the random values beside them differ.
    """
    counts = range(6, records // 5 + 1, 6)
    assert totals_of(flow) == Counter((f"c{c}", n) for c in range(5) for n in counts)
    assert flow.open_transactions() == []


def _each_once(flow: Flow, expected: range = range(_RECORDS), field: str = "n") -> None:
    assert Counter(json.loads(value)[field] for value in flow.values()) == Counter(expected)
    assert flow.open_transactions() == []


def test_killed_at_every_point_of_a_batch(flow: Flow, tmp_path: Path) -> None:
    flow.produce(map(record, range(_RECORDS)))
    for number, point in enumerate(POINTS):
        # Each run repeats the batch that the one before has died in.
        _killed(flow, tmp_path, point, number // 2)
    _finished(flow, tmp_path)
    _each_total_once(flow)


@pytest.mark.parametrize(
    ("pipeline", "field", "expected"),
    [("joined", "n", range(_RECORDS)), ("deduplicated", "key", range(20))],
)
def test_killed_at_every_point_whatever_the_query_does(
    flow: Flow, tmp_path: Path, pipeline: str, field: str, expected: range
) -> None:
    """With a different number of shuffle partitions in each run, which may move rows."""
    flow.produce(map(record, range(_RECORDS)))
    chosen = {**_SLOWLY, "pipeline": pipeline}
    for number, point in enumerate(POINTS):
        _killed(flow, tmp_path, point, number // 2, shuffle_partitions=2 + number, **chosen)
    _finished(flow, tmp_path, **chosen)
    _each_once(flow, expected, field)


def test_a_batch_that_was_staged_is_written_from_its_copy(flow: Flow, tmp_path: Path) -> None:
    """Also if its rows have been written and the end of the batch is not committed."""
    flow.produce(map(record, range(_RECORDS)))
    _killed(flow, tmp_path, "staged-commit", 1)
    files = _parts(flow, 1)
    assert files
    _killed(flow, tmp_path, "written", 1)
    written = Counter(flow.values())
    assert _parts(flow, 1) == files
    reports = _finished(flow, tmp_path)
    assert (reports[0]["rows_written"], reports[0]["rows_skipped"]) == (0, 5)
    assert written <= Counter(flow.values())
    _each_total_once(flow)


def test_a_lost_checkpoint_is_refused(flow: Flow, tmp_path: Path) -> None:
    flow.produce(map(record, range(_RECORDS)))
    _finished(flow, tmp_path)
    flow.stored.delete("")
    _ended_with(flow, tmp_path, "can't be continued without its own checkpoint")


@pytest.mark.parametrize(
    ("batches", "options", "words"),
    [
        # It has batch 0 only, so that batch 1 is next, as at the time.
        (2, {}, "has staged batch 2 last, and the query is at batch 1"),
        # Its next batch is planned anew.
        (1, {"max_offsets": 1_000}, "from other source offsets"),
    ],
)
def test_an_older_checkpoint_is_refused(
    flow: Flow, tmp_path: Path, batches: int, options: dict[str, Any], words: str
) -> None:
    flow.produce(map(record, range(30)))
    _finished(flow, tmp_path)
    older = {path: flow.stored.read(path) for path in flow.stored.sizes()}
    flow.produce(map(record, range(30, 30 + 30 * batches)))
    _finished(flow, tmp_path, "further")
    flow.produce(map(record, range(30 + 30 * batches, _RECORDS)))
    flow.stored.delete("")
    for path, content in older.items():
        flow.stored.write(path, content)
    _ended_with(flow, tmp_path, words, **options)


@pytest.mark.parametrize("how", ["removed", "cut"])
def test_a_damaged_copy_is_noticed(flow: Flow, tmp_path: Path, how: str) -> None:
    flow.produce(map(record, range(_RECORDS)))
    _killed(flow, tmp_path, "staged-commit", 1)
    files = _parts(flow, 1)
    file = max(files, key=lambda path: files[path])
    directory, _, name = file.rpartition("/")
    kept = flow.stored.read(file)
    if how == "removed":
        flow.stored.delete(file)
    else:
        flow.stored.write(file, kept[: len(kept) // 2])
        # Which only local files have.
        if (sums := f"{directory}/.{name}.crc") in flow.stored.sizes(directory):
            flow.stored.delete(sums)
    with _query(flow, tmp_path, "damaged") as query:
        assert query.wait() != 0
        words = "files of it were removed or changed" if how == "removed" else name
        assert words in query.output(), query.output()[-4000:]
    flow.stored.write(file, kept)
    _finished(flow, tmp_path)
    _each_total_once(flow)


def test_a_copy_that_is_half_written(flow: Flow, tmp_path: Path) -> None:
    """Its driver is killed; the batch is staged again, and the incomplete copy is swept."""
    flow.produce(map(record, range(_RECORDS)))
    _killed(flow, tmp_path, HALFWAY, 1, **_SLOWLY)
    (half,) = {"/".join(path.split("/")[:3]) for path in half_of(1, flow.stored)}
    assert f"{half}/_SUCCESS" not in flow.stored.sizes(half)
    _finished(flow, tmp_path, **_SLOWLY)
    _each_once(flow)
    assert not flow.stored.sizes(half)


def test_a_disk_that_is_full(flow: Flow, tmp_path: Path) -> None:
    """Space for a few files, but not for a whole copy; with more space, the query continues."""
    if not Path(flow.checkpoint).is_absolute():
        pytest.skip("the files are on no disk of this machine")
    flow.produce(map(record, range(30)))
    _finished(flow, tmp_path, **_SLOWLY)
    before = Counter(flow.values())
    flow.produce(map(record, range(30, _RECORDS)))
    copies = Path(flow.checkpoint) / STAGED
    small = f'mount -t tmpfs -o size=16k tmpfs {copies} && exec "$0" "$@"'
    if (
        shutil.which("unshare") is None
        or subprocess.run([*_UNSHARED, "true"], check=False).returncode
    ):
        pytest.skip("users may not mount anything here")
    with _query(
        flow, tmp_path, "full", through=[*_UNSHARED, "sh", "-c", small], **_SLOWLY
    ) as query:
        assert query.wait() > 0, query.output()
        assert "No space left on device" in query.output(), query.output()[-4000:]
    assert Counter(flow.values()) == before
    assert flow.open_transactions() == []
    _finished(flow, tmp_path, **_SLOWLY)
    _each_once(flow)


@pytest.mark.parametrize("point", ["staged", "staged-commit", "written"])
def test_progress_partitions_added_to_a_started_batch(
    flow: Flow, tmp_path: Path, point: str
) -> None:
    """Its copy has fewer files than there are partitions now."""
    flow.produce(map(record, range(_RECORDS)))
    topic = f"progress-{flow.name}"
    settings = {**_SLOWLY, "progress_topic": topic, "progress_partitions": 3}
    _killed(flow, tmp_path, point, 1, **settings)
    flow.broker.add_partitions(topic, 6)
    _finished(flow, tmp_path, **settings)
    _each_once(flow)


@pytest.mark.parametrize(
    ("point", "records", "error"),
    [
        pytest.param("staged", 60, "FencedByNewerRunError", id="before its copy counts"),
        # Its successor has written that copy, which is what counts for both, and has gone.
        pytest.param(
            "staged-commit", 60, "CONCURRENT_STREAM_LOG_UPDATE", id="before its copy is written"
        ),
        # Its successor has staged the next batch, too.
        pytest.param("staged", 90, "FencedByNewerRunError", id="and its copy is swept"),
    ],
)
def test_a_driver_wakes_up_while_its_successor_runs(
    flow: Flow, tmp_path: Path, point: str, records: int, error: str
) -> None:
    flow.produce(map(record, range(records)))
    with _query(flow, tmp_path, "older", kill=[point, 1, "SIGSTOP"]) as older:
        older.until(lambda: _stopped(older.process.pid), f"the point {point!r}", 120)
        _finished(flow, tmp_path, "newer")
        os.killpg(older.process.pid, signal.SIGCONT)
        assert older.wait() > 0, older.output()
    assert error in older.output(), older.output()[-4000:]
    _each_total_once(flow, records)


def _stopped(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return "\nState:\tT" in status
