"""docs/notebook.md and notebooks/exactly_once.py, on a real broker and a real Spark."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_eos import BatchReport, UnknownGroupError
from support.connect_server import ConnectService
from support.flow import Flow
from support.jupyter import Page, jupyter_page, plot_query
from support.notebook import Shown, run_notebook
from support.pages import code_blocks, with_words
from support.queries import until

SESSION, SINK, RUNNING, REPORT, STATUS, DATABRICKS = code_blocks("notebook", "python")

_REMEMBERED = "spark.sql.streaming.numRecentProgressUpdates"

Run = Callable[[str, Mapping[str, str]], Shown]


def _run(session: SparkSession, name: str, parameters: Mapping[str, str]) -> Shown:
    """Runs a notebook while Spark remembers the progress of only two batches."""
    session.conf.set(_REMEMBERED, "3")  # Spark keeps one less
    try:
        return run_notebook(session, name, parameters)
    finally:
        session.conf.unset(_REMEMBERED)


@pytest.fixture(params=["classic", "connect"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a notebook in a session of one kind of Spark."""
    if request.param == "connect":
        stage: ConnectService = request.getfixturevalue("connect_service")
        return partial(stage.queries.ask, _run)
    return partial(_run, request.getfixturevalue("spark_eos_session"))


@pytest.mark.slow
def test_the_notebook_writes_and_shows_each_batch(flow: Flow, run: Run) -> None:
    parameters = {
        "bootstrap_servers": flow.bootstrap_servers,
        "source": flow.source,
        "target": flow.target,
        "group_id": flow.group_id,
        "checkpoint": flow.checkpoint,
        "records_per_batch": "10",
    }
    flow.produce([f"order {n}" for n in range(30)])
    shown = run("exactly_once", parameters)
    assert [command.rpartition("/")[2] for command in shown.installed] == [
        "spark_eos-0.1.0-py3-none-any.whl"
    ]
    (table,) = shown.tables
    assert [
        (row["batch_id"], row["rows_written"], row["lag"], row["attempts"]) for row in table
    ] == [(0, 10, None, 1), (1, 10, 10, 1), (2, 10, 0, 1)]
    # One task writes a few rows, unless tasks waited long for them.
    assert all(row["transactions"] in {1, 2} for row in table)
    assert all(row["total_ms"] > 0 for row in table)
    assert shown.bars == [[10, 10, 10]]
    assert shown.lines == [[None, 10, 0]]
    assert shown.left == []
    assert not flow.members()

    # Once more: it goes on where it was, and shows what is new.
    flow.produce(["order 30", "order 31"])
    again = run("exactly_once", parameters)
    assert [(row["batch_id"], row["rows_written"]) for row in again.tables[0]] == [(3, 2)]
    assert sorted(flow.values()) == sorted(f"ORDER {n}" for n in range(32))
    # Nothing is new: there is nothing to show, and nothing fails.
    assert run("exactly_once", parameters).tables == [[]]
    assert len(flow.values()) == 32


def _names(flow: Flow, spark: SparkSession, page: Page) -> dict[str, Any]:
    """Variables of the page's cells after the first one."""
    names: dict[str, Any] = {}
    page.run(SESSION, names)
    assert names["spark"].sparkContext is spark.sparkContext
    words = {
        "localhost:9092": flow.bootstrap_servers,
        "order-plotters": flow.group_id,
        "orders-plotted": flow.target,
        "checkpoints/plotted": flow.checkpoint,
        'subscribe="orders"': f'subscribe="{flow.source}"',
    }
    page.run(with_words(SINK, words), names)
    return names


def _read(names: dict[str, Any], flow: Flow, rows: int) -> None:
    flow.produce(range(rows))
    names["query"].processAllAvailable()


@pytest.mark.slow
def test_the_page_in_jupyter(
    flow: Flow, spark_eos_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = jupyter_page(monkeypatch)
    names = _names(flow, spark_eos_session, page)
    query = names["query"]
    try:
        assert page.outputs == ["<div>No batch yet.</div>"]
        _read(names, flow, 30)
        _read(names, flow, 12)
        # Below the first cell, without anything being run.
        until(lambda: page.outputs[0].startswith("<img "), lambda: str(page.outputs))
        (at_first,) = page.outputs
        for cell in (RUNNING, REPORT, STATUS):
            page.run(cell, names)
        _live, again, report, status = page.outputs
        assert again.startswith("<img ")
        last: BatchReport = names["reports"][-1]
        assert f"Batch {last.batch_id} of group {flow.group_id}" in report
        assert f"Group {flow.group_id}</span>: Stable" in status
        assert "lag 0" in status
        assert names["sink"].status().lag == 0
        _read(names, flow, 5)
        until(lambda: page.outputs[0] != at_first, lambda: "another picture")
        # What Spark tells of a batch comes after the batch.
        batches = names["plot"]._batches
        until(lambda: all(b.lag is not None for b in batches.values()), lambda: str(batches))
    finally:
        query.stop()
        names["sink"].close()
    # What the plot has drawn is what was written.
    assert sum(batch.rows_written for batch in batches.values()) == 47
    assert [batch.lag for batch in batches.values()] == [0] * len(batches)
    assert all(b.trigger_ms >= b.sink_ms > 0 for b in batches.values())


@pytest.mark.slow
def test_the_page_in_databricks(
    flow: Flow, spark_eos_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = jupyter_page(monkeypatch)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    names = _names(flow, spark_eos_session, page)
    try:
        with pytest.raises(UnknownGroupError):
            names["sink"].status()
        _read(names, flow, 30)
        shown: list[str] = []
        page.run(DATABRICKS, names | {"displayHTML": shown.append})
        report, sink, status, plot = shown
        assert f"of group {flow.group_id}" in report
        assert flow.checkpoint in sink
        assert f"Group {flow.group_id}</span>: Stable" in status
        assert plot.startswith("<img ")
    finally:
        names["query"].stop()
        names["sink"].close()
    # Nothing is exchanged there.
    assert not page.exchanged


@pytest.mark.slow
def test_the_plot_with_connect(flow: Flow, connect_service: ConnectService) -> None:
    flow.produce(range(30))
    batches = connect_service.queries.ask(plot_query, flow.options(), flow.source)
    assert sum(batch["rows_read"] for batch in batches) == 30
    # Batches run in another process.
    assert all(batch["rows_written"] is None for batch in batches)
    assert batches[-1]["lag"] == 0
    assert all(batch["trigger_ms"] > batch["sink_ms"] > 0 for batch in batches)
