"""A Python that Spark's workers can't use is described, whatever it does."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkFiles

from spark_eos._spark import session


@pytest.mark.parametrize(
    ("script", "patience", "words"),
    [
        ('exec python3 "$@"\n', 60, "can't be run"),
        ("#!/bin/sh\nsleep 60\n", 0.2, "takes over 0.2 s"),
        ("#!/bin/sh\necho no such environment >&2\nexit 1\n", 60, "no such environment"),
    ],
    ids=["no program", "too slow", "no Python"],
)
def test_a_program_that_is_no_python(
    script: str, patience: float, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(script, encoding="utf-8")
    wrapper.chmod(0o755)
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    monkeypatch.setattr(session, "_PATIENCE", patience)
    context = SimpleNamespace(environment={}, _python_includes=[])
    assert words in session._problem_of(str(wrapper), context)
