"""Where downloaded jars are kept."""

from pathlib import Path

import pytest

from spark_eos._jars.cache import CACHE_VARIABLE, JarError, cache_directory, locked
from spark_eos._jars.jar_sets import jar_set


def test_without_a_home_directory_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(JarError, match=f"home directory. Set {CACHE_VARIABLE} to a directory"):
        cache_directory()


def test_a_cache_that_can_not_be_used_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(JarError, match=f"{tmp_path}/file.*{CACHE_VARIABLE}"):
        jar_set("spark-kafka-4.2.0")
    with pytest.raises(JarError, match=CACHE_VARIABLE), locked(tmp_path / "file" / ".lock"):
        pass
