"""An archive of jars is downloaded, verified and kept unpacked; with a small Maven archive."""

import json
import os
import shutil
from pathlib import Path

import pytest

from spark_eos._jars import cache, jar_sets
from spark_eos._jars.lockfile import parse_lock

SHA256 = "de59ea724ac26cdb899e2e73439b024d92a860164409cf1ab9602bfe3cd12c30"
ARCHIVE = {
    "organisation": "commons-daemon",
    "name": "commons-daemon",
    "version": "1.3.4",
    "classifier": "native-src",
    "extension": "tar.gz",
    "sha256": SHA256,
}
KEPT = "commons-daemon-1.3.4-native-src"
LICENSE = f"{KEPT}/LICENSE.txt"


def _kept(archive: dict[str, str] = ARCHIVE) -> Path:
    (found,) = jar_sets.locked_jars(parse_lock("some", json.dumps({"jars": [archive]})))
    return found


@pytest.fixture(scope="module")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the archive, downloaded under a umask that lets others write."""
    root = tmp_path_factory.mktemp("cache")
    before = os.umask(0)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(cache.CACHE_VARIABLE, str(root))
            _kept()
    finally:
        os.umask(before)
    return root


@pytest.fixture
def own_cache(genuine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the cache, as in container images: its times are in whole seconds."""
    copied = tmp_path / "cache"
    shutil.copytree(genuine, copied)
    for path in copied.rglob("*"):
        os.utime(path, (int(path.stat().st_mtime),) * 2)
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(copied))
    return copied / "jars" / "some"


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java, nothing can be downloaded."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")


@pytest.mark.usefixtures("no_java")
def test_what_is_unpacked_is_used(own_cache: Path) -> None:
    for _ in range(2):
        assert _kept() == own_cache / KEPT
    assert (own_cache / KEPT / LICENSE).stat().st_size == 11_358
    # The archive itself is not kept.
    left = sorted(path.name for path in own_cache.iterdir())
    assert left == [".lock", KEPT, "verified.json"]
    modes = {oct(path.stat().st_mode & 0o022) for path in own_cache.rglob("*")}
    assert modes == {"0o0"}


@pytest.mark.usefixtures("no_java")
def test_a_copy_with_other_times_is_used(own_cache: Path) -> None:
    for path in own_cache.rglob("*"):
        os.utime(path, (1, 1))
    assert _kept() == own_cache / KEPT


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        "changed",
        *(
            pytest.param(how, marks=pytest.mark.slow)
            for how in ("missing", "added", "without a stamp")
        ),
    ],
)
def test_what_is_incomplete_is_downloaded_again(how: str, own_cache: Path) -> None:
    victim = own_cache / KEPT / LICENSE
    if how == "changed":
        victim.write_text("of another time")
    elif how == "missing":
        victim.unlink()
    elif how == "added":
        (own_cache / KEPT / "more.jar").touch()
    else:
        (own_cache / "verified.json").unlink()
    assert _kept() == own_cache / KEPT
    assert victim.stat().st_size == 11_358
    assert not (own_cache / KEPT / "more.jar").exists()


@pytest.mark.slow
def test_a_tampered_archive_is_not_unpacked(own_cache: Path) -> None:
    shutil.rmtree(own_cache / KEPT)
    with pytest.raises(jar_sets.JarError, match=f"wrong SHA-256.*actual {SHA256}"):
        _kept({**ARCHIVE, "sha256": "0" * 64})
    assert sorted(path.name for path in own_cache.iterdir()) == [".lock", "verified.json"]


@pytest.mark.parametrize("place", ["", KEPT, LICENSE])
def test_what_others_may_write_is_refused(place: str, own_cache: Path) -> None:
    (own_cache / KEPT / place).chmod(0o666 if place == LICENSE else 0o777)
    with pytest.raises(jar_sets.JarError, match="others may write there"):
        _kept()
