"""Copies that are not finished, do not fit on the disk, or are read in another way than begun."""

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.flow import Flow
from support.queries import QueryProcess
from support.staged_main import HALFWAY
from support.staging import record

# A Spark for each run.
pytestmark = pytest.mark.slow

_RECORDS = 90
# Mounts of its own, which end with it.
_UNSHARED = ["unshare", "--user", "--map-root-user", "--mount"]


def _query(flow: Flow, tmp_path: Path, name: str, **settings: Any) -> QueryProcess:
    chosen = {"pipeline": "slowly", **settings}
    return QueryProcess(flow, tmp_path / f"{name}.log", main="support.staged_main", **chosen)


def _killed(flow: Flow, tmp_path: Path, point: str, batch: int, **settings: Any) -> None:
    with _query(flow, tmp_path, f"{point}-{batch}", kill=[point, batch], **settings) as query:
        assert query.wait(120) == -9, query.output()


def _finished(flow: Flow, tmp_path: Path, **settings: Any) -> None:
    with _query(flow, tmp_path, "last", **settings) as query:
        assert query.wait(120) == 0, query.output()


def _copies(flow: Flow) -> Path:
    return Path(flow.checkpoint) / "spark-eos" / "staged"


def _each_record_once(flow: Flow) -> None:
    found = Counter(json.loads(value)["n"] for value in flow.values())
    assert found == Counter(range(_RECORDS))
    assert flow.open_transactions() == []


@pytest.mark.proves("staged-killed-while-staging")
def test_a_copy_that_is_half_written(flow: Flow, tmp_path: Path) -> None:
    """Its driver is killed; the batch is staged anew, and the half is swept."""
    flow.produce(map(record, range(_RECORDS)))
    _killed(flow, tmp_path, HALFWAY, 1)
    (half,) = _copies(flow).glob("1-*")
    assert any(half.glob("_temporary/**/part-*.parquet"))
    assert not (half / "_SUCCESS").exists()
    _finished(flow, tmp_path)
    _each_record_once(flow)
    assert not half.exists()


@pytest.mark.proves("staged-disk-full")
def test_a_disk_that_is_full(flow: Flow, tmp_path: Path) -> None:
    """Room for a few files and not for a whole copy; with more room the query goes on."""
    flow.produce(map(record, range(30)))
    _finished(flow, tmp_path)
    before = Counter(flow.values())
    flow.produce(map(record, range(30, _RECORDS)))
    small = f'mount -t tmpfs -o size=16k tmpfs {_copies(flow)} && exec "$0" "$@"'
    if (
        shutil.which("unshare") is None
        or subprocess.run([*_UNSHARED, "true"], check=False).returncode
    ):
        pytest.skip("users may not mount anything here")
    with _query(flow, tmp_path, "full", through=[*_UNSHARED, "sh", "-c", small]) as query:
        assert query.wait(120) > 0, query.output()
        assert "No space left on device" in query.output(), query.output()[-4000:]
    assert Counter(flow.values()) == before
    assert flow.open_transactions() == []
    _finished(flow, tmp_path)
    _each_record_once(flow)


@pytest.mark.proves("staged-killed-while-writing", "staged-progress-topic-grows")
@pytest.mark.parametrize("point", ["staged", "staged-commit", "written"])
def test_progress_partitions_that_are_added_to_a_batch_that_was_begun(
    flow: Flow, tmp_path: Path, point: str
) -> None:
    """Its copy has fewer files than there are partitions now."""
    flow.produce(map(record, range(_RECORDS)))
    topic = f"progress-{flow.name}"
    settings = {"progress_topic": topic, "progress_partitions": 3}
    _killed(flow, tmp_path, point, 1, **settings)
    flow.broker.add_partitions(topic, 6)
    _finished(flow, tmp_path, **settings)
    _each_record_once(flow)
