"""From an empty directory, following only the docs: a first query, and a user's test suite."""

import os
import re
import subprocess
import venv
from pathlib import Path

import pytest

from support.jobs import ROOT
from support.pages import code_blocks
from support.pins import write_pins

# They install PySpark, and prepare Kafka and Spark in it.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with its own environment, as described in docs/index.md and docs/testing.md."""
    directory = tmp_path_factory.mktemp("home")
    venv.create(directory / "venv", with_pip=True)
    pip = [str(directory / "venv/bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
    # As tested: not what is newest today.
    pins = write_pins(directory / "pins.txt")
    subprocess.run(
        [*pip, f"{ROOT}[testing]", "--constraint", str(pins)],
        cwd=directory,
        check=True,
        timeout=600,
    )
    return directory


def _run(home: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "PYTHONPATH"))}
    return subprocess.run(
        [str(home / "venv/bin" / command[0]), *command[1:]],
        cwd=home,
        env={**kept, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_first_query(home: Path) -> None:
    (code,) = (block for block in code_blocks("index", "python") if "EmbeddedKafka()" in block)
    (home / "first.py").write_text(code, encoding="utf-8")
    ended = _run(home, "python", "first.py")
    assert ended.returncode == 0, ended.stderr
    assert re.findall(r"\| *([A-Z]+)\|", ended.stdout).count("EXACTLY") == 2
    assert "batch 0: 3 rows in" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_suite_of_ones_own(home: Path) -> None:
    suite, _ = code_blocks("testing", "python")
    (home / "test_drinks.py").write_text(suite, encoding="utf-8")
    # kafka-python's imports cause warnings on Python 3.11 and 3.12.
    ended = _run(home, "pytest", "-q", "-W", "error", "test_drinks.py")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 passed" in ended.stdout
