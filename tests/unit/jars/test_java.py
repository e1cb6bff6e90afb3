"""What `java -version` prints of a Java, whatever its options."""

from pathlib import Path

import pytest

from spark_eos._jars.java import JavaError, find_java

_VERSION = 'openjdk version "21.0.1" 2023-10-17'


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that quotes its options, as the JVM does; what else it prints is in a file."""
    executable = tmp_path / "bin" / "java"
    executable.parent.mkdir()
    script = "#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Dhttps.proxyPassword=s3cret' >&2\n"
    executable.write_text(f"{script}cat {tmp_path}/printed >&2\n", encoding="utf-8")
    executable.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return tmp_path / "printed"


def test_the_same_java_is_the_same_with_other_options(java: Path) -> None:
    java.write_text(f"{_VERSION}\n", encoding="utf-8")
    assert find_java().banner == _VERSION


def test_an_unknown_java_is_quoted_without_its_options(java: Path) -> None:
    java.write_text("Unrecognized option: -nonsense\n", encoding="utf-8")
    with pytest.raises(JavaError, match="but: Unrecognized option: -nonsense") as refused:
        find_java()
    assert "s3cret" not in str(refused.value)
