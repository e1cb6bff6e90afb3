"""What makes brokers and Spark sessions start sooner must be used, and must never be in the way."""

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from spark_eos.jars.cache import cache_directory
from spark_eos.testing import EmbeddedKafka
from spark_eos.testing.class_archive import ClassArchive


def _maps_an_archive(pid: int) -> bool:
    """Whether it is one of ours: the JDK has one of its own classes."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return any(str(cache_directory().resolve()) in line and "classes.jsa" in line for line in lines)


@pytest.mark.usefixtures("spark_eos_session")
def test_a_session_takes_its_classes_from_an_archive() -> None:
    gateway: Any = SparkContext._gateway
    assert _maps_an_archive(gateway.proc.pid)


def test_a_broker_takes_its_classes_from_an_archive(embedded_kafka: EmbeddedKafka) -> None:
    assert _maps_an_archive(embedded_kafka.pid)


def test_an_archive_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = ClassArchive(tmp_path, "Programs")
    assert archive.options == []
    trained: list[list[str]] = []

    def exercise(options: list[str]) -> None:
        trained.append(options)
        Path(options[0].partition("=")[2]).write_bytes(b"classes")

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
