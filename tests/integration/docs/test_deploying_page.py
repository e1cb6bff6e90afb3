"""docs/deploying.md: its recipe for executors that have nothing installed, on a real cluster."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.flow import Flow
from support.jobs import ROOT
from support.pages import readmes_query
from support.shipping import SHIPPED, make_bare_python, pack
from support.standalone import Standalone

# Each submits an application of its own.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as found:
        yield found


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_bare_python(tmp_path_factory.mktemp("bare"))


@pytest.fixture
def script(flow: Flow, tmp_path: Path) -> Path:
    """The README's query, until everything available is read."""
    flow.produce([str(number) for number in range(20)])
    path = tmp_path / "my_query.py"
    path.write_text(readmes_query(flow), encoding="utf-8")
    return path


def _environment(bare_python: str) -> dict[str, str]:
    return {"PYSPARK_PYTHON": bare_python, "PYSPARK_DRIVER_PYTHON": sys.executable}


def test_packages_that_are_shipped(
    flow: Flow, cluster: Standalone, bare_python: str, script: Path
) -> None:
    pack(script.parent)
    ended = cluster.submit(script, *SHIPPED, environment=_environment(bare_python))
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
    last_line = ended.stdout.rstrip().splitlines()[-1]
    assert last_line.startswith(
        "spark_eos.errors.QueryFailedError: ConfigurationError: the Python of Spark's executors has"
    )
    assert not shipped or "no module 'pyarrow'" in last_line
    assert flow.values() == []
