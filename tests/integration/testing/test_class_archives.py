"""Class archives, which speed up starts of brokers and Spark, are used and never cause failures."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark import SparkContext

from spark_eos import session_builder
from spark_eos._cli import main
from spark_eos._jars import spark_image
from spark_eos._jars.cache import CACHE_VARIABLE, JarError, cache_directory
from spark_eos._jars.class_archive import ClassArchive
from spark_eos._spark import session
from spark_eos.testing import EmbeddedKafka
from support.error_classes import without_address
from support.intruding import NOBODY, needs_root


def _maps_an_archive(pid: int) -> bool:
    """Return True if the archive is one of ours: the JDK has its own classes' archive."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return any(str(cache_directory().resolve()) in line and "classes.jsa" in line for line in lines)


@pytest.mark.slow
@pytest.mark.usefixtures("spark_eos_session")
def test_a_session_takes_its_classes_from_an_archive() -> None:
    gateway: Any = SparkContext._gateway
    assert _maps_an_archive(gateway.proc.pid)


def _make(options: list[str]) -> None:
    Path(options[0].partition("=")[2]).write_bytes(b"classes")


def _fail(_options: list[str]) -> None:
    raise RuntimeError("no room")


_SESSION = """
import os
from spark_eos import session_builder
builder = session_builder(class_archive=True).config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", "-Dmine=1").getOrCreate()
process = getattr(spark.sparkContext._gateway, "proc", None)
jvm = f"/proc/{process.pid if process else os.getppid()}"
lines = open(f"{jvm}/maps").read().splitlines()
archives = [line.split()[-1] for line in lines if "classes.jsa" in line]
print("mine" in open(f"{jvm}/cmdline").read(), archives)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["python", "spark-submit"])
def test_a_driver_takes_its_classes_from_an_archive(how: str, tmp_path: Path) -> None:
    script = tmp_path / "session.py"
    script.write_text(_SESSION)
    options = CliRunner().invoke(main, ["class-archive"]).stdout.strip()
    submit = [
        str(Path(sys.executable).with_name("spark-submit")),
        *("--master", "local[1]"),
        *("--conf", f"spark.driver.defaultJavaOptions={options}"),
        *("--driver-java-options", "-Dmine=1"),
        str(script),
    ]
    command = [sys.executable, str(script)] if how == "python" else submit
    others = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_")
    kept = {k: v for k, v in os.environ.items() if k == CACHE_VARIABLE or not k.startswith(others)}
    environment = {**kept, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    ended = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, timeout=200
    )
    assert str(spark_image._archive(create=False).file.resolve()) in ended.stdout
    # What the user has set stays.
    assert ended.stdout.startswith("True ")


def test_a_driver_without_an_archive_says_how_to_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(session, "spark_kafka_jars", list)
    with caplog.at_level(logging.WARNING):
        session_builder(class_archive=True)
    (said,) = caplog.records
    assert "run `spark-eos class-archive`" in said.message
    # A cache that was prepared may be read-only.
    assert list(tmp_path.iterdir()) == []


def test_an_archive_that_can_not_be_made_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark splits options at spaces.
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "my cache"))

    monkeypatch.setattr("spark_eos._cli.class_archive.train", _fail)
    result = CliRunner().invoke(main, ["class-archive"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert without_address(result.stderr).endswith("Error: no room\n")
    assert result.stderr.count("no room") == 1
    monkeypatch.setattr("spark_eos._cli.class_archive.train", _make)
    result = CliRunner().invoke(main, ["class-archive"])
    (archive,) = tmp_path.rglob("classes.jsa")
    assert result.stdout.startswith(f'"-XX:SharedArchiveFile={archive}" "')


def test_a_broker_that_can_not_be_had_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv("SPARK_EOS_KAFKA", "1.0.0")
    result = CliRunner().invoke(main, ["class-archive"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith("Error: No jar set 'kafka-1.0.0'")


def test_an_archive_in_what_is_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    result = CliRunner().invoke(main, ["class-archive"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive, created under a umask that lets others write."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr("spark_eos._cli.class_archive.train", _make)
    before = os.umask(0)
    try:
        assert CliRunner().invoke(main, ["class-archive"]).exit_code == 0
    finally:
        os.umask(before)
    (archive,) = tmp_path.rglob("classes.jsa")
    return archive


@pytest.mark.slow
def test_an_archive_that_others_may_write_is_refused(made: Path) -> None:
    for place in (made, *list(made.parents)[:3]):
        mode = place.stat().st_mode
        place.chmod(mode | 0o002)
        result = CliRunner().invoke(main, ["class-archive"])
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"Error: {place} has mode" in result.stderr
        with pytest.raises(
            (JarError, spark_image.ClassArchiveError), match=f"{place} has.*others may write"
        ):
            session_builder(class_archive=True)
        place.chmod(mode)


@needs_root
def test_an_archive_of_another_user_is_refused(made: Path) -> None:
    os.chown(made, NOBODY, NOBODY)
    result = CliRunner().invoke(main, ["class-archive"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Error: {made} belongs to user id {NOBODY}" in result.stderr


@needs_root
def test_an_archive_that_root_has_made_is_everybodys(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As images of containers have it.
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    result = CliRunner().invoke(main, ["class-archive"])
    assert result.stdout.startswith(f'"-XX:SharedArchiveFile={made}" "')


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
    message = (
        "Programs are being prepared for quick starts, once on this machine. This takes a minute "
        "or two ...\n"
    )
    assert capsys.readouterr().err == message
    assert archive.options[0] == f"-XX:SharedArchiveFile={archive.file}"
    assert archive.file.read_bytes() == b"classes"


@pytest.mark.parametrize("hours", [-1.1, 0.1])
def test_a_failure_is_reported_once_and_retried_after_an_hour(
    hours: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = ClassArchive(tmp_path, "Programs")
    with caplog.at_level(logging.WARNING):
        archive.train(_fail)
        archive.train(_make)
    assert [without_address(r.message) for r in caplog.records] == [
        "Programs will start slowly, without a class data archive: no room"
    ]
    assert archive.options == []
    (marker,) = tmp_path.glob("*.failed")
    # In the future, if the clock has been set back since.
    then = marker.stat().st_mtime + hours * 3600
    os.utime(marker, (then, then))
    archive.train(_make)
    assert archive.file.exists()
