"""Tests in this directory start no JVM: a test that requests a broker or Spark fails."""

from pathlib import Path
from typing import NoReturn

import pytest


def _refuse(request: pytest.FixtureRequest) -> NoReturn:
    pytest.fail(f"{request.fixturename} starts a JVM: the test belongs in tests/integration")


for _name in (
    "embedded_kafka",
    "spark_eos_session",
    "connect_service",
    "secured",
    "_proxy",
):
    globals()[_name] = pytest.fixture(name=_name)(_refuse)


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Processes that tests start find no Java, either."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
