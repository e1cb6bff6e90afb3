"""Where downloaded jars are kept."""

from pathlib import Path

import pytest

from spark_eos._jars.cache import CACHE_VARIABLE, JarError, cache_directory


def test_without_a_home_directory_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(JarError, match=f"home directory. Set {CACHE_VARIABLE} to a directory"):
        cache_directory()
