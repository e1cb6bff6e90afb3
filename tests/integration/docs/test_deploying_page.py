"""docs/deploying.md: its recipe for executors that have nothing installed, on a real cluster."""

import re
import shutil
import subprocess
import sys
import venv
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


@pytest.mark.parametrize("shipped", [False, True], ids=["nothing", "spark-eos alone"])
def test_executors_that_have(
    flow: Flow, cluster: Standalone, bare_python: str, script: Path, *, shipped: bool
) -> None:
    package = shutil.make_archive(str(script.parent / "package"), "zip", ROOT, "spark_eos")
    files = ["--py-files", package] if shipped else []
    ended = cluster.submit(script, *files, environment=_environment(bare_python))
    assert ended.returncode == 1
    # The script's own last line; spark-submit sends its stderr to stdout.
    told = ended.stdout.rstrip().splitlines()[-1]
    assert told.startswith(
        "spark_eos.errors.QueryFailedError: ConfigurationError: the Python of Spark's executors has"
    )
    assert not shipped or "no module 'pyarrow'" in told
    assert flow.values() == []
