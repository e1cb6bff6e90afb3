"""Ctrl-C in a plain script that calls `run`, and what the script's logs show."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.flow import Flow
from support.queries import until
from support.scripts import write_script

# Each starts a Spark of its own.
pytestmark = pytest.mark.slow

_SESSION = """
import logging
logging.basicConfig(level=logging.{level})
# Spark would draw its progress in between.
spark = (
    session_builder()
    .master("local[2]")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
"""


def _started(
    flow: Flow, directory: Path, wait: str, level: str = "WARNING"
) -> tuple["subprocess.Popen[str]", Path]:
    script = write_script(flow, directory, session=_SESSION.format(level=level), wait=wait)
    log = directory / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
            # As a terminal starts it, also if this process ignores SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        )
    return process, log


def _interrupted(process: "subprocess.Popen[str]") -> int:
    # As the terminal does: the JVM too.
    os.killpg(process.pid, signal.SIGINT)
    return process.wait(240)


def test_ctrl_c_ends_in_one_line(flow: Flow, tmp_path: Path) -> None:
    flow.produce(range(4))
    process, log = _started(flow, tmp_path, "run(query)", level="INFO")
    try:
        until(lambda: len(flow.values()) == 4, log.read_text, 240)
        before = log.read_text()
        status = _interrupted(process)
    finally:
        process.kill()
        process.wait()
    output = log.read_text()
    assert status == 128 + signal.SIGINT
    lines = [
        line
        for line in output[len(before) :].splitlines()
        # What the user asked for with basicConfig(level=INFO).
        if not line.startswith("INFO:")
    ]
    assert lines == ["Interrupted: the query has stopped; its next start continues from there."]
    assert "Traceback" not in output
    # kafka-python has logged nothing, either.
    assert "kafka.net" not in output
    assert "kafka.cluster" not in output
    assert flow.open_transactions() == []


@pytest.mark.parametrize("how", ["caught", "of the user's own"])
def test_a_script_that_handles_ctrl_c_itself(flow: Flow, tmp_path: Path, how: str) -> None:
    wait = {
        "caught": """
import logging, signal
before = signal.getsignal(signal.SIGINT)
try:
    run(query)
except SystemExit:
    print("mine", query.isActive)
    root = spark.sparkContext._jvm.org.apache.logging.log4j.LogManager.getRootLogger()
    print("as before", signal.getsignal(signal.SIGINT) is before, root.getLevel())
    print("py4j", logging.getLogger("py4j").level)
""",
        "of the user's own": """
import os, signal
# It can't ask the JVM, which the main thread is just calling.
signal.signal(signal.SIGINT, lambda *_: print("mine True", flush=True) or os._exit(0))
run(query)
""",
    }[how]
    flow.produce(range(4))
    process, log = _started(flow, tmp_path, wait)
    try:
        until(lambda: len(flow.values()) == 4, log.read_text, 240)
        assert _interrupted(process) == 0
    finally:
        process.kill()
        process.wait()
    output = log.read_text()
    assert f"mine {how != 'caught'}" in output
    if how == "caught":
        assert "as before True ERROR" in output
        assert "py4j 0" in output
    assert "Traceback" not in output
