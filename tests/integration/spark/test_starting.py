"""How a query starts: with plain Python or spark-submit, and the errors if something is missing."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_eos import ExactlyOnceSink
from support.flow import Flow
from support.pages import readmes_query

_SINK = """
from pyspark.sql import SparkSession
from spark_eos import ExactlyOnceSink, session_builder

sink = ExactlyOnceSink(
    kafka={{"bootstrap.servers": "127.0.0.1:1"}},
    group_id="nobody",
    topic="nowhere",
    checkpoint_location="/nowhere",
)
spark = {builder}.master("{master}").getOrCreate()
sink.read(spark, subscribe="nothing")
"""
# Of the standard library alone; a broker is not asked, there is none.
_BARE = "SparkSession.builder"
_OURS = "session_builder()"


def _bare_path() -> str:
    """A PATH like cron's, with Java: Python's environment is not activated."""
    java = shutil.which("java")
    assert java is not None
    return os.pathsep.join(["/usr/bin", "/bin", str(Path(java).parent)])


def _run(directory: Path, code: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    script = directory / "my_query.py"
    script.write_text(code, encoding="utf-8")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "PYTHONPATH"))}
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=directory,
        env={**kept, "PATH": _bare_path(), "SPARK_LOCAL_IP": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def _last_line(ended: "subprocess.CompletedProcess[str]") -> str:
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return ended.stderr.rstrip().splitlines()[-1]


_WORKER = """
from spark_eos import session_builder

def modules(rows):
    import sys, pyspark
    yield [f"{'spark_eos._exactly_once.task' in sys.modules} {'.zip' in pyspark.__file__}"]

builder = session_builder(worker_daemon=True).master("local[1]").config("spark.ui.enabled", "false")
print(builder.getOrCreate().sparkContext.parallelize([1], 1).mapPartitions(modules).collect())
"""


@pytest.mark.slow
def test_workers_begin_with_a_tasks_modules(tmp_path: Path) -> None:
    ended = _run(tmp_path, _WORKER)
    assert ended.stdout.strip() == "[['True False']]", ended.stderr


@pytest.fixture
def other_python(tmp_path: Path) -> str:
    """A Python of this version without packages."""
    venv.create(tmp_path / "other", with_pip=False)
    return str(tmp_path / "other" / "bin" / "python")


@pytest.mark.slow
def test_the_readmes_query_under_plain_python(flow: Flow, tmp_path: Path) -> None:
    flow.produce(["a", "b"])
    ended = _run(tmp_path, readmes_query(flow))
    assert ended.returncode == 0, ended.stderr
    assert sorted(flow.values()) == ["A", "B"]


@pytest.mark.slow
def test_a_session_without_the_kafka_source(tmp_path: Path) -> None:
    text = _last_line(_run(tmp_path, _SINK.format(builder=_BARE, master="local[1]")))
    assert text.startswith("spark_eos.errors.ConfigurationError: Spark has no Kafka source")
    assert "session_builder()" in text
    assert '--jars "$(spark-eos jars)"' in text


@pytest.mark.slow
def test_workers_whose_python_lacks_packages(tmp_path: Path, other_python: str) -> None:
    code = _SINK.format(builder=_OURS, master="local[1]")
    text = _last_line(_run(tmp_path, code, PYSPARK_PYTHON=other_python))
    assert text.startswith(
        f"spark_eos.errors.ConfigurationError: Spark's workers would run {other_python}"
    )
    assert "no module 'pyspark'" in text
    assert f"PYSPARK_PYTHON={sys.executable}" in text


@pytest.mark.slow
def test_workers_whose_python_can_not_be_run(tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text('exec python3 "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    code = _SINK.format(builder=_OURS, master="local[1]")
    text = _last_line(_run(tmp_path, code, PYSPARK_PYTHON=str(wrapper)))
    assert f"ConfigurationError: Spark's workers would run {wrapper}, but it can't be run" in text


@pytest.mark.slow
def test_threads_that_are_not_pinned(tmp_path: Path) -> None:
    code = _SINK.format(builder=_OURS, master="local[1]")
    text = _last_line(_run(tmp_path, code, PYSPARK_PIN_THREAD="false"))
    assert text.startswith("spark_eos.errors.ConfigurationError: PYSPARK_PIN_THREAD is false")
    assert "unset it before Python starts Spark" in text


@pytest.mark.slow
def test_executors_without_the_package(flow: Flow, tmp_path: Path, other_python: str) -> None:
    """Executors of a cluster: only tasks see their Python; the first one reports the problem."""
    # It has all packages but ours, which is installed by a link that only the driver follows.
    (packages,) = Path(other_python).parent.parent.glob("lib/python*/site-packages")
    (packages / "all.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    assert (
        "ConfigurationError: the Python of Spark's executors has no module 'spark_eos'"
        in _failed_on_executors(flow, tmp_path, other_python)
    )


@pytest.mark.slow
def test_executors_without_the_program(flow: Flow, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "bin" / "python")
    text = _failed_on_executors(flow, tmp_path, nowhere)
    assert f"ConfigurationError: there is no program {nowhere!r} on a host of" in text


def _failed_on_executors(flow: Flow, directory: Path, python: str) -> str:
    """The output of a query that fails on a cluster whose tasks use this Python."""
    flow.produce(["a"])
    code = (
        _SINK.format(builder=_OURS, master="local-cluster[1,1,1024]")
        .replace("127.0.0.1:1", flow.bootstrap_servers)
        .replace('"nobody"', repr(flow.group_id))
        .replace('"nowhere"', repr(flow.target))
        .replace('"/nowhere"', repr(flow.checkpoint))
        .replace('sink.read(spark, subscribe="nothing")', _QUERY.format(source=flow.source))
    )
    ended = _run(directory, code, PYSPARK_PYTHON=python)
    assert ended.returncode == 1
    assert flow.values() == []
    return ended.stderr


_QUERY = """
rows = sink.read(spark, subscribe="{source}").select("source", "value")
sink.write(rows).trigger(availableNow=True).start().awaitTermination()
"""


def _outcome_of_start(session: SparkSession, options: dict[str, Any], source: str) -> str:
    sink = ExactlyOnceSink(**options)
    writer = sink.write(sink.read(session, subscribe=source).select("source", "value"))
    try:
        writer.start()
    except Exception as error:  # noqa: BLE001 - which one it is, is the question
        return f"{type(error).__name__}: {error}"
    finally:
        sink.close()
    return "started"


@pytest.mark.parametrize("api", ["classic", pytest.param("connect", marks=pytest.mark.slow)])
def test_a_checkpoint_that_can_not_be_created(
    request: pytest.FixtureRequest,
    flow: Flow,
    spark_eos_session: SparkSession,
    tmp_path: Path,
    api: str,
) -> None:
    (tmp_path / "file").touch()
    for place in (f"{tmp_path}/file/orders", "nofs://bucket/orders"):
        options = {**flow.options(), "checkpoint_location": place}
        text = (
            request.getfixturevalue("connect_service").queries.ask(
                _outcome_of_start, options, flow.source
            )
            if api == "connect"
            else _outcome_of_start(spark_eos_session, options, flow.source)
        )
        assert text.startswith(f"CheckpointError: checkpoint_location '{place}' can't be created: ")
        assert len(text.splitlines()) == 1
