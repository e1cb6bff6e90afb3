"""notebooks/exactly_once.py: its cells in order, on a real broker and a real Spark."""

from collections.abc import Callable, Mapping
from functools import partial

import pytest

from support.connect_server import ConnectStage
from support.flow import Flow
from support.notebook import Shown, run_notebook

Run = Callable[[str, Mapping[str, str]], Shown]


@pytest.fixture(params=["classic", pytest.param("connect", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a notebook in a session of one kind of Spark."""
    if request.param == "connect":
        stage: ConnectStage = request.getfixturevalue("connect_stage")
        return partial(stage.queries.ask, run_notebook)
    return partial(run_notebook, request.getfixturevalue("spark_eos_session"))


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
        (row["batch_id"], row["rows_written"], row["lag"], row["transactions"], row["rounds"])
        for row in table
    ] == [(0, 10, 20, 2, 1), (1, 10, 10, 2, 1), (2, 10, 0, 2, 1)]
    assert all(row["total_ms"] > 0 for row in table)
    assert shown.bars == [[10, 10, 10]]
    assert shown.lines == [[20, 10, 0]]
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
