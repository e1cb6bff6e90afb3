"""Unit tests stay fast: they can't use a broker or a Spark session."""

import os
import shutil

import pytest

from spark_eos._jars.java import JavaError
from spark_eos.testing import EmbeddedKafka


@pytest.mark.parametrize("name", ["embedded_kafka", "spark_eos_session", "connect_service", "flow"])
def test_fixtures_that_start_one_fail(name: str, request: pytest.FixtureRequest) -> None:
    with pytest.raises(pytest.fail.Exception, match="the test belongs in tests/integration"):
        request.getfixturevalue(name)


def test_java_is_not_found() -> None:
    with pytest.raises(JavaError), EmbeddedKafka():
        pass
    assert shutil.which("java", path=f"{os.environ['JAVA_HOME']}/bin") is None
