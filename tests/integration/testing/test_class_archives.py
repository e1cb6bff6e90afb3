"""What makes brokers and Spark sessions start sooner must be used, and must never be in the way."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark import SparkContext

from spark_eos.cli import main
from spark_eos.jars import spark_classes
from spark_eos.jars.cache import CACHE_VARIABLE, cache_directory
from spark_eos.jars.class_archive import ClassArchive
from spark_eos.testing import EmbeddedKafka


def _maps_an_archive(pid: int) -> bool:
    """Whether it is one of ours: the JDK has one of its own classes."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return any(str(cache_directory().resolve()) in line and "classes.jsa" in line for line in lines)


@pytest.mark.usefixtures("spark_eos_session")
def test_a_session_takes_its_classes_from_an_archive() -> None:
    gateway: Any = SparkContext._gateway
    assert _maps_an_archive(gateway.proc.pid)


def _make(options: list[str]) -> None:
    Path(options[0].partition("=")[2]).write_bytes(b"classes")


_SESSION = """
import os
from spark_eos import session_builder
spark = session_builder(class_archive=True).config("spark.ui.enabled", "false").getOrCreate()
process = getattr(spark.sparkContext._gateway, "proc", None)
lines = open(f"/proc/{process.pid if process else os.getppid()}/maps").read().splitlines()
print([line.split()[-1] for line in lines if "classes.jsa" in line])
"""


@pytest.mark.parametrize("how", ["python", "spark-submit"])
def test_a_driver_takes_its_classes_from_an_archive(how: str, tmp_path: Path) -> None:
    script = tmp_path / "session.py"
    script.write_text(_SESSION)
    options = CliRunner().invoke(main, ["class-archive"]).stdout.strip()
    submit = [
        str(Path(sys.executable).with_name("spark-submit")),
        *("--master", "local[1]", "--driver-java-options", options, str(script)),
    ]
    command = [sys.executable, str(script)] if how == "python" else submit
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    ended = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, timeout=200
    )
    assert str(spark_classes.class_archive().file) in ended.stdout


def test_an_archive_that_can_not_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))

    def fail(_options: list[str]) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(spark_classes, "_exercise", fail)
    result = CliRunner().invoke(main, ["class-archive"])
    (failed,) = tmp_path.rglob("*.failed")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"can't be made: no room\nTo try again, remove {failed}.\n" in result.stderr


def test_an_archive_that_others_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(spark_classes, "_exercise", _make)
    assert CliRunner().invoke(main, ["class-archive"]).exit_code == 0
    (archive,) = tmp_path.rglob("classes.jsa")
    for place in (archive, archive.parent, archive.parent.parent, tmp_path):
        mode = place.stat().st_mode
        place.chmod(mode | 0o002)
        result = CliRunner().invoke(main, ["class-archive"])
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"Error: {place} belongs to user id" in result.stderr
        place.chmod(mode)


def test_a_broker_takes_its_classes_from_an_archive(embedded_kafka: EmbeddedKafka) -> None:
    assert _maps_an_archive(embedded_kafka.pid)


def test_an_archive_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = ClassArchive(tmp_path, "Programs")
    assert archive.options == []
    trained: list[list[str]] = []

    def exercise(options: list[str]) -> None:
        trained.append(options)
        _make(options)

    archive.train(exercise)
    archive.train(exercise)
    assert len(trained) == 1
    told = "Programs are prepared for quick starts, once on this machine: half a minute ...\n"
    assert capsys.readouterr().err == told
    assert archive.options[0] == f"-XX:SharedArchiveFile={archive.file}"
    assert archive.file.read_bytes() == b"classes"


def test_a_failure_is_told_once_and_is_in_nobodys_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = ClassArchive(tmp_path, "Programs")
    calls: list[int] = []

    def exercise(_options: list[str]) -> None:
        calls.append(1)
        raise RuntimeError("no room")

    with caplog.at_level(logging.WARNING):
        archive.train(exercise)
        archive.train(exercise)
    assert len(calls) == 1
    assert [r.message for r in caplog.records] == [
        "Programs will start slowly: no class data archive: no room"
    ]
    assert archive.options == []
