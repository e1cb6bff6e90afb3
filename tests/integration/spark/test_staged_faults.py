"""Queries with staged delivery that die, wake up, or find something else than they left."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.flow import Flow
from support.queries import QueryProcess
from support.staged_main import POINTS
from support.staging import record

# A Spark for each run.
pytestmark = pytest.mark.slow

_RECORDS = 90


def _query(flow: Flow, tmp_path: Path, name: str, **settings: Any) -> QueryProcess:
    log = tmp_path / f"{name}.log"
    chosen = {"pipeline": "totals", "mode": "update", **settings}
    return QueryProcess(flow, log, main="support.staged_main", **chosen)


def _killed(flow: Flow, tmp_path: Path, point: str, batch: int, **settings: Any) -> None:
    with _query(flow, tmp_path, f"{point}-{batch}", kill=[point, batch], **settings) as query:
        assert query.wait(120) == -9, query.output()


def _finished(flow: Flow, tmp_path: Path, name: str = "last", **settings: Any) -> list[Any]:
    with _query(flow, tmp_path, name, **settings) as query:
        assert query.wait(120) == 0, query.output()
        return query.reports()


def _ended_with(flow: Flow, tmp_path: Path, words: str, **settings: Any) -> None:
    before = Counter(flow.values())
    with _query(flow, tmp_path, "refused", **settings) as query:
        assert query.wait(120) != 0
        assert words in query.output(), query.output()[-4000:]
    assert Counter(flow.values()) == before


def _rows(flow: Flow) -> list[dict[str, Any]]:
    return [json.loads(value) for value in flow.values()]


def _each_total_once(flow: Flow, records: int = _RECORDS) -> None:
    """Each batch adds six records of each customer, and writes each customer's total once.

    The totals are equal in each attempt of a batch, but what is random beside them is not.
    """
    found = Counter((row["customer"], row["count"]) for row in _rows(flow))
    assert set(found.values()) == {1}
    counts = range(6, records // 5 + 1, 6)
    assert set(found) == {(f"c{c}", n) for c in range(5) for n in counts}
    assert flow.open_transactions() == []


@pytest.mark.proves(
    "staged-killed-while-staging", "staged-killed-after-commit", "staged-rows-differ"
)
def test_killed_at_every_point_of_a_batch(flow: Flow, tmp_path: Path) -> None:
    flow.produce(map(record, range(_RECORDS)))
    for number, point in enumerate(POINTS):
        # Each run repeats the batch that the one before has died in.
        _killed(flow, tmp_path, point, number // 2)
    _finished(flow, tmp_path)
    _each_total_once(flow)


@pytest.mark.proves("staged-killed-while-writing")
@pytest.mark.parametrize(
    ("pipeline", "field", "expected"),
    [("joined", "n", range(_RECORDS)), ("deduplicated", "key", range(20))],
)
def test_killed_at_every_point_whatever_the_query_does(
    flow: Flow, tmp_path: Path, pipeline: str, field: str, expected: range
) -> None:
    """With another number of shuffle partitions in each run, which may change what is where."""
    flow.produce(map(record, range(_RECORDS)))
    chosen = {"pipeline": pipeline, "mode": "append"}
    for number, point in enumerate(POINTS):
        _killed(flow, tmp_path, point, number // 2, shuffle_partitions=2 + number, **chosen)
    _finished(flow, tmp_path, **chosen)
    assert Counter(row[field] for row in _rows(flow)) == Counter(expected)
    assert flow.open_transactions() == []


@pytest.mark.proves("staged-killed-when-staged")
def test_a_batch_that_was_staged_is_written_from_its_copy(flow: Flow, tmp_path: Path) -> None:
    """Also where its rows have been written and the end of the batch is not committed."""
    flow.produce(map(record, range(_RECORDS)))
    _killed(flow, tmp_path, "staged-commit", 1)
    (copy,) = (Path(flow.checkpoint) / "spark-eos" / "staged").glob("1-*")
    files = sorted(path.name for path in copy.glob("part-*"))
    _killed(flow, tmp_path, "written", 1)
    written = Counter(flow.values())
    assert sorted(path.name for path in copy.glob("part-*")) == files
    reports = _finished(flow, tmp_path)
    assert (reports[0]["rows_written"], reports[0]["rows_skipped"]) == (0, 5)
    assert written <= Counter(flow.values())
    _each_total_once(flow)


@pytest.mark.proves("staged-checkpoint-deleted")
def test_a_lost_checkpoint_is_refused(flow: Flow, tmp_path: Path) -> None:
    flow.produce(map(record, range(_RECORDS)))
    _finished(flow, tmp_path)
    shutil.rmtree(flow.checkpoint)
    _ended_with(flow, tmp_path, "can't be continued without its own checkpoint")


@pytest.mark.proves("staged-checkpoint-older")
def test_an_older_checkpoint_is_refused(flow: Flow, tmp_path: Path) -> None:
    """One of two batches earlier, and one whose last batch Spark plans anew."""
    flow.produce(map(record, range(30)))
    _finished(flow, tmp_path)
    older = tmp_path / "older"
    shutil.copytree(flow.checkpoint, older)
    flow.produce(map(record, range(30, 90)))
    _finished(flow, tmp_path, "further")
    shutil.rmtree(flow.checkpoint)
    shutil.copytree(older, flow.checkpoint)
    # It has batch 0 only, so that batch 1 is next, as at the time.
    _ended_with(flow, tmp_path, "has staged batch 2 last, and the query is at batch 1")


@pytest.mark.proves("staged-checkpoint-older")
def test_a_batch_that_is_planned_anew_is_refused(flow: Flow, tmp_path: Path) -> None:
    flow.produce(map(record, range(30)))
    _finished(flow, tmp_path)
    older = tmp_path / "older"
    shutil.copytree(flow.checkpoint, older)
    flow.produce(map(record, range(30, 60)))
    _finished(flow, tmp_path, "further")
    flow.produce(map(record, range(60, 90)))
    shutil.rmtree(flow.checkpoint)
    shutil.copytree(older, flow.checkpoint)
    _ended_with(flow, tmp_path, "from other source offsets", max_offsets=1_000)


@pytest.mark.proves("staged-file-damaged", case="removed]")
@pytest.mark.proves("staged-file-damaged", case="cut]")
@pytest.mark.parametrize("how", ["removed", "cut"])
def test_a_damaged_copy_is_noticed(flow: Flow, tmp_path: Path, how: str) -> None:
    flow.produce(map(record, range(_RECORDS)))
    _killed(flow, tmp_path, "staged-commit", 1)
    (copy,) = (Path(flow.checkpoint) / "spark-eos" / "staged").glob("1-*")
    file = max(copy.glob("part-*"), key=lambda path: path.stat().st_size)
    kept = file.read_bytes()
    if how == "removed":
        file.unlink()
    else:
        file.write_bytes(kept[: len(kept) // 2])
        (copy / f".{file.name}.crc").unlink()
    with _query(flow, tmp_path, "damaged") as query:
        assert query.wait(120) != 0
        words = "files of it were removed or changed" if how == "removed" else file.name
        assert words in query.output(), query.output()[-4000:]
    file.write_bytes(kept)
    _finished(flow, tmp_path)
    _each_total_once(flow)
