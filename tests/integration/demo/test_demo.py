"""The demonstration: its counts, its output, and cleanup."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from demo.orders import make_orders, produce_orders
from demo.report import Report
from demo.watching import TargetReader
from spark_eos.verify import Difference, compare
from support.flow import Flow
from support.jobs import ROOT
from support.queries import until

COMMAND = [sys.executable, "-m", "demo"]
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "tests")])


def _report(flow: Flow, timeout: float = 30) -> Report:
    expect = f"topic:{flow.source}"
    return Report(compare(kafka=flow.kafka, outputs=[flow.target], expect=expect, timeout=timeout))


@pytest.mark.slow
def test_an_open_transaction_is_neither_counted_nor_overlooked(flow: Flow) -> None:
    producer = Producer({**flow.kafka, "transactional.id": f"open-{flow.name}"})
    producer.init_transactions(60)
    orders = [value for _key, value in make_orders(20, seed=1)]
    reader = TargetReader(flow.bootstrap_servers, flow.target, flow.partitions)
    with contextlib.closing(reader):
        for start, end in ((0, 10), (10, 20)):
            producer.begin_transaction()
            for value in orders[start:end]:
                producer.produce(flow.target, value)
            producer.flush(60)
            if end == 20:
                found = _report(flow, timeout=2)
                assert found.comparison.count(Difference.OPEN)
                assert found.comparison.records_out == 10
                assert not found.exactly_once
            else:
                producer.commit_transaction(20)
                until(lambda: reader.read(0.1), lambda: "visible rows")
            reader.read_until_quiet(0.5)
            assert reader.rows.total() == 10
        producer.abort_transaction(20)
        reader.read_until_quiet(0.5)
        assert reader.rows.total() == 10


@pytest.fixture
def start_demo(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Starts the demo with its own temporary directory: ``tmp_path``/temporary."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def start(*arguments: str, **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PATHS, "TMPDIR": str(temporary), **environment},
            start_new_session=True,
        )

    return start


def row(table: str, name: str) -> list[str]:
    found = re.search(rf"^│ {name} +│ +(\S.*?) │ +(\S.*?) │$", table, re.MULTILINE)
    assert found is not None, table
    return list(found.groups())


@pytest.mark.slow
@pytest.mark.timeout(1300)
def test_the_demo_reports_the_truth(
    start_demo: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    with start_demo("--orders", "8000", "--keep-logs", str(logs)) as process:
        out, err = process.communicate(timeout=1200)
    assert (process.returncode, err) == (0, ""), out
    first, second = out.split("Orders by customer and window")
    _check_copies(first)
    _check_counts(second)
    assert len(re.findall(r"killed in batch \d+, not in the commit log: [1-9]", out)) == 8
    # A kill that comes too late is tried again, with one more start.
    assert {log.stem for log in logs.iterdir()} >= {
        "kafka",
        *(
            f"{act}-{sink}-{n}"
            for act in ("orders", "counts")
            for sink in ("exactly-once", "spark")
            for n in (1, 2, 3)
        ),
    }


def _check_copies(out: str) -> None:
    assert row(out, "orders in") == ["8,000", "8,000"]
    ours, sparks = row(out, "orders out")
    assert ours == "8,000"
    assert row(out, "missing") == ["0", "0"]
    assert row(out, "open transactions") == ["0", "0"]
    assert row(out, "group lag") == ["0", "no group"]
    ours, duplicates = row(out, "duplicates")
    assert ours == "0"
    # What was written before the second kill is there again, after the checkpoint's loss.
    assert int(duplicates.replace(",", "")) > 4_000
    assert int(sparks.replace(",", "")) == 8_000 + int(duplicates.replace(",", ""))


def _check_counts(out: str) -> None:
    expected, again = (int(cell.replace(",", "")) for cell in row(out, "counts expected"))
    assert expected == again > 4_000
    ours, sparks = (int(cell.replace(",", "")) for cell in row(out, "counts out"))
    assert ours == expected
    no_duplicates, duplicates = row(out, "duplicates")
    assert no_duplicates == "0"
    # What was visible of the two killed batches was written again.
    assert int(duplicates.replace(",", "")) == sparks - expected > 400
    for name in ("missing", "unexpected", "open transactions"):
        assert row(out, name) == ["0", "0"]


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_and_no_data(
    start_demo: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    with start_demo("--orders", "1000") as process:
        assert process.stdout is not None
        while "started" not in (line := process.stdout.readline()):
            assert line, process.communicate()
        until(lambda: processes_of(temporary), lambda: "the query's process")
        process.send_signal(signal.SIGINT)
        _out, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (130, "Stopped.\n")
    assert not processes_of(temporary)
    assert not [path for path in temporary.iterdir() if path.name.startswith("spark-eos-")]


@pytest.mark.slow
def test_a_failing_query_shows_the_end_of_its_log(
    start_demo: Callable[..., "subprocess.Popen[str]"],
) -> None:
    with start_demo("--orders", "1000", PYSPARK_SUBMIT_ARGS="--no-such-option") as process:
        _out, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert err.startswith("Error: spark-eos: the query failed with exit status 1.")
    assert "JAVA_GATEWAY_EXITED" in err


def processes_of(directory: Path) -> list[str]:
    """Processes with a directory as their working directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (process / "cwd").readlink().is_relative_to(directory):
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.slow
def test_a_tampered_target_is_found_out(flow: Flow) -> None:
    count = 2_500
    orders = list(make_orders(count, seed=1))
    for topic in (flow.source, flow.target):
        produce_orders(flow.bootstrap_servers, topic, count, seed=1)
    assert _report(flow).exactly_once
    producer = Producer(flow.kafka)
    key, value = orders[17]
    producer.produce(flow.target, value, key)
    assert producer.flush(60) == 0
    doubled = _report(flow)
    found = doubled.comparison
    assert (found.rows_expected, found.records_out) == (count, count + 1)
    assert (found.count(Difference.DUPLICATE), found.count(Difference.MISSING)) == (1, 0)
    assert not doubled.exactly_once
