"""Options of a driver's JVM, and the jars that its class archive is of."""

from pathlib import Path

import pytest

from spark_eos._jars.spark_image import _spark_jars, quoted


def test_an_option_with_a_space_stays_one() -> None:
    options = quoted(["-Xmx1g", "-XX:SharedArchiveFile=/my cache/classes.jsa"])
    assert options == '"-Xmx1g" "-XX:SharedArchiveFile=/my cache/classes.jsa"'


def test_the_archive_is_of_the_spark_that_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert _spark_jars() == [tmp_path / "jars" / "spark-core.jar"]
    monkeypatch.delenv("SPARK_HOME")
    assert any(jar.name.startswith("spark-core") for jar in _spark_jars())
