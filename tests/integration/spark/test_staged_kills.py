"""Queries of every shape, killed at any moment, write the same as a plain batch query."""

import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_eos.verify import Verdict, compare
from support.flow import Flow
from support.queries import QueryProcess
from support.shapes import SHAPES, UNFORESEEN
from support.staging import record

pytestmark = [
    # A Spark for each run, and moments that are others each time: `make test-kills`.
    pytest.mark.skipif("SPARK_EOS_KILLS" not in os.environ, reason="make test-kills runs it"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

_RECORDS = 450
_KILLS = 2
# Seconds from a query's start in which it is sure to be writing.
_LONGEST = 5.0


def _query(flow: Flow, tmp_path: Path, name: str, **settings: Any) -> QueryProcess:
    return QueryProcess(flow, tmp_path / f"{name}.log", main="support.shapes_main", **settings)


def _last(flow: Flow, log: str) -> int:
    """The last batch in one of the checkpoint's logs; -1 if there is none."""
    names = [path.rpartition("/")[2] for path in flow.stored.sizes(log)]
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _within_a_batch(flow: Flow) -> bool:
    finished = _last(flow, "commits")
    return _last(flow, "offsets") > finished


def _killed(flow: Flow, tmp_path: Path, **settings: Any) -> list[float]:
    """Kills a query at random moments within batches and restarts it; returns its run times."""
    moments: list[float] = []
    kills = 0
    while kills < _KILLS:
        assert len(moments) < 3 * _KILLS, f"{kills} kills have met a batch of {moments}"
        seconds = round(random.uniform(0, _LONGEST), 2)
        name = f"killed-{len(moments)}"
        with _query(flow, tmp_path, name, forever=True, **settings) as query:
            query.until(lambda: "STARTED" in query.output(), "its start", 120)
            time.sleep(seconds)
            # The first one takes long to begin.
            query.until(lambda: _within_a_batch(flow), "a batch")
        moments.append(seconds)
        # It may have ended it before the signal came.
        kills += _within_a_batch(flow)
    return moments


def _to_the_end(flow: Flow, tmp_path: Path, **settings: Any) -> None:
    with _query(flow, tmp_path, "last", **settings) as query:
        assert query.wait(240) == 0, query.output()[-4_000:]


def _files(directory: Path, values: Sequence[str]) -> str:
    directory.mkdir()
    for first in range(0, len(values), 30):
        file = directory / f"{first:06}.txt"
        file.write_text("".join(f"{value}\n" for value in values[first : first + 30]))
    return str(directory)


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_killed_at_any_moment(
    name: str, flow: Flow, spark_eos_session: SparkSession, tmp_path: Path
) -> None:
    shape, values = SHAPES[name], [record(number) for number in range(_RECORDS)]
    settings: dict[str, Any] = {"shape": name}
    if shape.reads_files:
        settings["source"] = _files(tmp_path / "input", values)
    else:
        flow.produce(values)
    moments = _killed(flow, tmp_path, **settings)
    _to_the_end(flow, tmp_path, **settings)
    if shape.windows:
        # All of them are closed by a record far ahead, whose own stays open.
        flow.produce([record(100_000)])
        _to_the_end(flow, tmp_path, **settings)
    frame = spark_eos_session.createDataFrame([(value,) for value in values], "value string")
    expected = tmp_path / "expected"
    shape.expected(frame).select("key", "value").write.parquet(str(expected))
    found = compare(
        kafka=flow.kafka,
        outputs=[flow.target],
        expect=expected,
        key=shape.by_key,
        group_id=flow.group_id,
        prefix=f"spark-eos/{flow.group_id}/",
    )
    assert found.verdict is Verdict.SOUND, (moments, found.anomalies, found.unjudged)
    assert found.rows_expected > 0


@pytest.mark.parametrize("name", UNFORESEEN)
def test_killed_queries_with_unpredictable_output(name: str, flow: Flow, tmp_path: Path) -> None:
    """No batch query can predict which records a limit takes, or how many a rate generates."""
    flow.produce(map(record, range(_RECORDS)))
    moments = _killed(flow, tmp_path, shape=name)
    _to_the_end(flow, tmp_path, shape=name)
    found = sorted(json.loads(value)["n"] for value in flow.values())
    if name == "limit":
        assert len(set(found)) == len(found) == 100, moments
        assert set(found) <= set(range(_RECORDS))
    else:
        assert found == list(range(len(found))), moments
        assert len(found) >= 30
    assert flow.open_transactions() == []
