"""docs/deploying.md: its recipe for executors that have nothing installed, on a real cluster."""

import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.flow import Flow
from support.jobs import ROOT
from support.pages import code_blocks, readmes_query
from support.pins import write_pins
from support.standalone import Standalone

PACK, SUBMIT = code_blocks("deploying", "sh")

# Each submits an application of its own.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as found:
        yield found


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python of this version without packages."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, with_pip=False)
    return str(place / "bin" / "python")


@pytest.fixture
def script(flow: Flow, tmp_path: Path) -> Path:
    """The README's query, until all there is was read."""
    flow.produce([str(number) for number in range(20)])
    path = tmp_path / "my_query.py"
    path.write_text(readmes_query(flow), encoding="utf-8")
    return path


def _environment(bare_python: str) -> dict[str, str]:
    return {"PYSPARK_PYTHON": bare_python, "PYSPARK_DRIVER_PYTHON": sys.executable}


def _told(ended: "subprocess.CompletedProcess[str]") -> str:
    """The script's own last line; spark-submit sends its stderr to stdout."""
    print(ended.stdout, ended.stderr)
    return ended.stdout.rstrip().splitlines()[-1]


def test_packages_that_are_shipped(
    flow: Flow, cluster: Standalone, bare_python: str, script: Path
) -> None:
    # As tested: not what is newest today.
    pins = write_pins(script.parent / "pins.txt")
    pack = PACK
    for words, others in {
        "python3": sys.executable,
        " . ": f" {ROOT} --no-build-isolation --constraint {pins} ",
    }.items():
        assert words in pack
        pack = pack.replace(words, others)
    subprocess.run(["/bin/bash", "-e", "-c", pack], cwd=script.parent, check=True, timeout=300)
    pairs = re.findall(r"(--archives|--conf) (\S+)", SUBMIT)
    options = [word for pair in pairs for word in pair]
    assert len(options) == 4
    ended = cluster.submit(script, *options, environment=_environment(bare_python))
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert sorted(map(int, flow.values())) == list(range(20))
    # It was the cluster, all of it.
    assert cluster.executors() == {"worker-0", "worker-1"}


def test_executors_that_have_nothing(
    flow: Flow, cluster: Standalone, bare_python: str, script: Path
) -> None:
    ended = cluster.submit(script, environment=_environment(bare_python))
    assert ended.returncode == 1
    assert _told(ended).startswith(
        "spark_eos.errors.QueryFailedError: ConfigurationError: the Python of Spark's executors has"
    )
    assert flow.values() == []


def test_py_files_alone(flow: Flow, cluster: Standalone, bare_python: str, script: Path) -> None:
    package = script.parent / "spark_eos.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for path in (ROOT / "spark_eos").rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(ROOT))
    environment = _environment(bare_python)
    ended = cluster.submit(script, "--py-files", str(package), environment=environment)
    assert ended.returncode == 1
    assert "the Python of Spark's executors has no module 'pyarrow'" in _told(ended)
    assert flow.values() == []
