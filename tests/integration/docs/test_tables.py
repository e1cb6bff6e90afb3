"""docs/recipes.md: a Delta and an Iceberg table are filled from a written topic."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from spark_eos._jars.cache import cached
from support.flow import Flow, transaction
from support.pages import code_blocks, with_words

BEGIN, *_, DELTA, TABLE, ICEBERG, TO_ICEBERG = code_blocks("recipes", "python")

# Each starts Sparks of its own, which download the table format.
pytestmark = pytest.mark.slow

_READ = """
query.processAllAvailable()
query.stop()
rows = {rows}
print("ROWS", json.dumps(sorted([row["key"], row["value"]] for row in rows.collect())))
"""


def _script(flow: Flow, *pieces: str, rows: str) -> str:
    code = "\n".join([BEGIN.partition("\nspark = ")[0], *pieces, _READ.format(rows=rows)])
    ivy = f"session_builder().config('spark.jars.ivy', {str(cached('ivy'))!r})"
    instead = {
        "session_builder()\n": f"{ivy}\n",
        '"localhost:9092"': repr(flow.bootstrap_servers),
        '"orders-enriched"': repr(flow.target),
    }
    return with_words(code, instead)


def _filled(place: Path, script: str) -> list[list[str]]:
    """Fills the table with everything available; returns its rows."""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=place,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-6000:]
    (line,) = (line for line in ran.stdout.splitlines() if line.startswith("ROWS "))
    found: list[list[str]] = json.loads(line[5:])
    return found


def _write(flow: Flow, numbers: range, *, commit: bool = True) -> None:
    with transaction(flow.bootstrap_servers, commit=commit) as producer:
        for number in numbers:
            producer.produce(flow.target, f"order {number}", str(number))


def _of(spark: str, table_format: str) -> pytest.MarkDecorator:
    fits = pyspark.__version__.startswith(f"{spark}.")
    return pytest.mark.skipif(not fits, reason=f"{table_format} is for Spark {spark}")


def _each_row_once(flow: Flow, place: Path, script: str) -> None:
    for first in (0, 30):
        _write(flow, range(first, first + 30))
        _write(flow, range(1000, 1010), commit=False)
        rows = [[str(number), f"order {number}"] for number in range(first + 30)]
        assert _filled(place, script) == sorted(rows)


@_of("4.2", "delta-spark 4.4.0")
def test_a_delta_table(flow: Flow, tmp_path: Path) -> None:
    rows = 'spark.read.format("delta").load("tables/orders")'
    _each_row_once(flow, tmp_path, _script(flow, DELTA, TABLE, rows=rows))


@_of("4.1", "iceberg-spark-runtime 1.12.0")
def test_an_iceberg_table(flow: Flow, tmp_path: Path) -> None:
    table = TABLE.partition("query = ")[0]
    script = _script(flow, ICEBERG, table, TO_ICEBERG, rows='spark.table("lake.orders")')
    _each_row_once(flow, tmp_path, script)
