"""``spark-eos verify --expect``: its output, exit statuses and cleanup."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result

from support.expecting import Outputs, Put, parquet
from support.flow import Flow
from support.operating import (
    COMMAND,
    assert_refused,
    check_interrupted,
    invoked,
    without_layout,
)

ROWS: list[Put] = [("a", "1"), ("b", "2"), ("c", "3")]
WIDTH = 100
NOBODY = ["verify", "--bootstrap-servers", "127.0.0.1:1", "--output", "out"]


def arguments(flow: Flow, expect: object, *more: str) -> list[str]:
    where = ["--bootstrap-servers", flow.bootstrap_servers, "--output", flow.target]
    return ["verify", *where, "--expect", str(expect), "--timeout", "5", *more]


def run(flow: Flow, expect: object, *more: str) -> Result:
    return invoked(arguments(flow, expect, *more))


def test_expected_output_has_exit_status_0_and_prints_no_warning(
    flow: Flow, tmp_path: Path
) -> None:
    file = parquet(tmp_path / "e.parquet", ROWS)
    Outputs(flow).write(ROWS)
    # A setting that only producers have.
    more = ["--kafka", "linger.ms=5", "--prefix", "spark-eos/"]
    command = [COMMAND, *arguments(flow, file, *more)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    head = "SOUND: 3 rows expected, 3 out as a read_committed consumer sees them"
    assert result.stdout.splitlines()[0].rstrip() == head
    assert max(map(len, result.stdout.splitlines())) <= WIDTH
    keys = run(flow, file, "--key")
    assert keys.exit_code == 0
    assert keys.stdout.startswith(f"{head}\nCompared by the last value of each key.\n")
    assert max(map(len, keys.stdout.splitlines())) <= WIDTH


def test_differences_have_exit_status_1(flow: Flow, tmp_path: Path) -> None:
    file = parquet(tmp_path / "e.parquet", ROWS)
    Outputs(flow).write([ROWS[1], ROWS[1], ("d", "\x1b"), ("e", None)])
    result = run(flow, file, "--examples", "1")
    assert result.exit_code == 1
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[0].startswith("ANOMALIES: 3 rows expected, 4 out")
    table = {*map(without_layout, lines)}
    assert "missing 2 expected rows that do not occur" in table
    assert "duplicates 1 rows that occur more often than expected" in table
    assert "unexpected 2 rows that occur but were never expected" in table
    assert "different values - not checked: needs --key" in table
    assert "missing, 1 of 2:" in lines
    assert "  key 'a', value '1', row e.parquet:0, 0 visible, 1 expected" in lines
    at = f"at {flow.target}:0:0 and {flow.target}:0:1"
    text = without_layout(result.stdout)
    assert f"key 'b', value '2', row e.parquet:1, {at}, 2 visible, 1 expected" in text
    assert f"key 'd', value '\\x1b', at {flow.target}:0:2, 1 visible, 0 expected" in text
    assert f"key 'e', value null, at {flow.target}:0:3" in run(flow, file).stdout

    def found(count: int, *examples: tuple[Any, ...]) -> dict[str, Any]:
        names = ("key", "value", "expected", "source", "outputs", "detail")
        return {"count": count, "examples": [dict(zip(names, e, strict=True)) for e in examples]}

    first, second, third = (
        {"topic": flow.target, "partition": 0, "offset": offset} for offset in range(3)
    )
    assert json.loads(run(flow, file, "--json", "--examples", "1").stdout) == {
        "verdict": "anomalies",
        "rows_expected": 3,
        "records_out": 4,
        "by_key": False,
        "found": {
            "missing": found(2, ("a", "1", None, "e.parquet:0", [], "0 visible, 1 expected")),
            "duplicates": found(
                1, ("b", "2", None, "e.parquet:1", [first, second], "2 visible, 1 expected")
            ),
            "unexpected": found(2, ("d", "\\x1b", None, None, [third], "1 visible, 0 expected")),
            "open_transactions": found(0),
        },
        "not_checked": ["different_values"],
        "unjudged": {},
        "notes": [],
    }


def test_different_values_of_keys(flow: Flow, tmp_path: Path) -> None:
    file = parquet(tmp_path / "e.parquet", ROWS)
    Outputs(flow).write([*ROWS, ("a", "2"), ("c", None)])
    result = run(flow, file, "--key")
    assert result.exit_code == 1
    table = {*map(without_layout, result.stdout.splitlines())}
    assert "missing 1 expected keys that do not occur or are deleted" in table
    assert "different values 1 keys whose last value is not the expected one" in table
    assert "duplicates - not checked: does not apply to --key" in table
    at = f"at {flow.target}:0:3"
    assert f"key 'a', value '2', expected '1', row e.parquet:0, {at}" in table
    assert f"key 'c', value '3', row e.parquet:2, at {flow.target}:0:4, deleted" in table
    document = json.loads(run(flow, file, "--key", "--json").stdout)
    assert document["by_key"] is True
    assert document["found"]["different_values"]["examples"][0]["expected"] == "1"


def test_what_can_not_be_judged_has_exit_status_2(flow: Flow, tmp_path: Path) -> None:
    outputs = Outputs(flow)
    outputs.write([("a", "1")])
    outputs.write([("a", "2")], 1)
    result = run(flow, parquet(tmp_path / "e.parquet", ROWS[:1]), "--key")
    assert result.exit_code == 2
    assert result.stdout.startswith("CAN'T BE JUDGED: 1 rows expected, 2 out")
    assert "1 keys in several partitions, of which no order says" in result.stdout


@pytest.mark.parametrize(
    ("expect", "more", "message"),
    [
        ("numbers.parquet", [], "column 'value' of "),
        ("no-such.parquet", [], "can't be opened: "),
        ("values.parquet", ["--key"], "--key needs a column 'key' in --expect"),
        ("values.parquet", ["--kafka", "security.protocol=TLS"], "must be one of PLAINTEXT"),
        ("values.parquet", ["--timeout", "1"], "within 1 s (--timeout)"),
        ("topic:", [], "must be a non-empty string"),
    ],
)
def test_what_can_not_be_compared_has_exit_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expect: str, more: list[str], message: str
) -> None:
    # Nobody listens there: all but the timeout is found before anything is asked.
    monkeypatch.chdir(tmp_path)
    parquet(Path("values.parquet"), ROWS)
    parquet(Path("numbers.parquet"), ROWS, value=[1, 2, 3])
    pq.write_table(pq.read_table("values.parquet").drop_columns(["key"]), "values.parquet")
    assert_refused(invoked([*NOBODY, "--expect", expect, *more]), message)


_FOR_INPUT = [
    ["--input", "in"],
    ["--source-bootstrap-servers", "127.0.0.1:1"],
    ["--position-header", "src"],
    ["--header", "id"],
    ["--expect-header", "n"],
    ["--isolation-level", "read_uncommitted"],
    ["--complete"],
    ["--at-most-once-each"],
]


@pytest.mark.parametrize("given", [*(["--expect", "e.parquet", *o] for o in _FOR_INPUT), ["--key"]])
def test_options_that_are_not_for_expectations(given: list[str]) -> None:
    """Without an expectation, the input is required."""
    result = invoked([*NOBODY, *given])
    named = "Missing option '--input'" if given == ["--key"] else given[2]
    assert (result.exit_code, f"Error: {named}" in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupt_removes_the_temporary_database(
    flow: Flow, tmp_path: Path, number: signal.Signals
) -> None:
    file = parquet(tmp_path / "e.parquet", ROWS)
    outputs = Outputs(flow)
    outputs.begin(ROWS)  # something to wait for
    check_interrupted(arguments(flow, file, "--timeout", "60"), tmp_path / "temporary", number)
