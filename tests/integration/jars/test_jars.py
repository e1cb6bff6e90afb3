import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner
from filelock import FileLock

from spark_eos._cli import main
from spark_eos._jars import cache, jar_sets
from spark_eos._jars.ivy import DownloadError
from spark_eos._jars.java import JavaError
from spark_eos._jars.lockfile import lock_names, read_lock
from spark_eos._spark import source_options
from support.intruding import NOBODY, needs_root
from support.jobs import ROOT

SET = "spark-kafka-4.2.0"


@pytest.fixture(scope="module")
def genuine() -> list[Path]:
    """The jars as in the user's cache."""
    return jar_sets.jar_set(SET)


@pytest.fixture
def own_cache(genuine: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a copy of the jars that has never been verified."""
    directory = tmp_path / "jars" / SET
    directory.mkdir(parents=True)
    for jar in genuine:
        shutil.copyfile(jar, directory / jar.name)
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path))
    return directory


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java, nothing can be downloaded; so what works now runs no Ivy."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")


@pytest.mark.usefixtures("no_java")
def test_a_cache_that_is_complete_needs_no_ivy(own_cache: Path) -> None:
    for _ in range(2):
        assert [jar.parent for jar in jar_sets.jar_set(SET)] == [own_cache] * 4


def test_a_missing_jar_is_downloaded(own_cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pool = next(own_cache.glob("commons-pool2-*.jar"))
    pool.unlink()
    assert pool in jar_sets.jar_set(SET)
    assert pool.stat().st_size > 100_000
    output = capfd.readouterr()
    assert "1/1" in output.err
    assert not output.out
    assert sorted(path.name for path in own_cache.iterdir() if path.suffix != ".jar") == [
        ".lock",
        "verified.json",
    ]


def test_a_missing_jar_is_downloaded_by_a_java_with_options(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As images of containers set them: with a garbage collector and a heap of their own."""
    pool = next(own_cache.glob("commons-pool2-*.jar"))
    pool.unlink()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseParallelGC -Xms300m")
    assert pool in jar_sets.jar_set(SET)


def test_a_copy_that_was_interrupted_is_made_again(own_cache: Path) -> None:
    pool = next(own_cache.glob("commons-pool2-*.jar"))
    pool.unlink()
    begun = own_cache / ".ivy" / "fetched" / pool.name
    begun.parent.mkdir(parents=True)
    begun.write_bytes(b"PK")
    # Ivy would keep it, as newer than what it has downloaded.
    os.utime(begun, (2**32, 2**32))
    assert pool in jar_sets.jar_set(SET)
    assert pool.stat().st_size > 100_000


@pytest.mark.usefixtures("no_java")
def test_a_missing_jar_without_java_says_so(own_cache: Path) -> None:
    next(own_cache.glob("commons-pool2-*.jar")).unlink()
    with pytest.raises(JavaError, match=r"No java on PATH.*Install Java 17"):
        jar_sets.jar_set(SET)


@pytest.mark.parametrize("verified_before", [False, True])
def test_a_tampered_jar_is_refused_and_removed(own_cache: Path, *, verified_before: bool) -> None:
    if verified_before:
        jar_sets.jar_set(SET)
    victim = next(own_cache.glob("kafka-clients-*.jar"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1  # the size stays
    victim.write_bytes(content)
    with pytest.raises(jar_sets.JarError, match="wrong SHA-256") as caught:
        jar_sets.jar_set(SET)
    assert str(victim) in str(caught.value)
    assert "expected 014b4ef3" in str(caught.value)
    assert not victim.exists()


def test_a_failed_download_shows_what_ivy_says(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next(own_cache.glob("commons-pool2-*.jar")).unlink()
    # A proxy at which nothing listens.
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9")
    with pytest.raises(DownloadError) as caught:
        jar_sets.jar_set(SET)
    assert "org.apache.commons#commons-pool2;2.13.1: not found" in str(caught.value)
    assert "Connection refused" in str(caught.value)


def test_concurrent_calls_download_once(own_cache: Path) -> None:
    next(own_cache.glob("commons-pool2-*.jar")).unlink()
    script = f"from spark_eos._jars import jar_sets; print(len(jar_sets.jar_set({SET!r})))"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [out.strip() for out, _ in outputs] == ["4"] * 4
    assert sum("1/1" in err for _, err in outputs) == 1


def test_the_set_follows_the_version_of_pyspark(genuine: list[Path]) -> None:
    assert jar_sets.spark_kafka_jars() == jar_sets.spark_kafka_jars(metadata.version("pyspark"))
    assert jar_sets.spark_kafka_jars("4.2.7") == genuine
    names = [jar.name for jar in jar_sets.spark_kafka_jars("4.0.1")]
    assert names[0] == "spark-sql-kafka-0-10_2.13-4.0.4.jar"


@pytest.mark.parametrize("version", ["3.5.1", "4.20.0", "5.0.0", "nonsense"])
def test_an_unsupported_pyspark_is_refused(version: str) -> None:
    with pytest.raises(jar_sets.JarError, match=rf"pyspark {version}; supported versions: 4\.0, "):
        jar_sets.spark_kafka_jars(version)


def test_an_unknown_set_is_refused() -> None:
    with pytest.raises(
        jar_sets.JarError, match=r"No jar set 'kafka-1'; available sets: .*kafka-4\.3\.1, "
    ):
        jar_sets.jar_set("kafka-1")


def test_the_locks_name_no_spark_that_the_tests_are_not_run_on() -> None:
    files = [*ROOT.glob("constraints*.txt")]
    pins = {pin for f in files for pin in re.findall(r"(?m)^pyspark==(\d+\.\d+)", f.read_text())}
    locked = [minor for name in lock_names() for minor in read_lock(name).pyspark]
    assert sorted(locked) == sorted(pins)


def test_the_command_prints_jars_of_another_spark_alone(genuine: list[Path]) -> None:
    for version in ("4.2.0", "4.3.0"):
        result = CliRunner().invoke(main, ["jars", "--pyspark", version])
        assert (result.stdout, result.stderr) == (",".join(map(str, genuine)) + "\n", "")


def _plant(directory: Path) -> None:
    """A changed jar, and the stamp that says it is verified."""
    jar_sets.jar_set(SET)
    victim = next(directory.glob("kafka-clients-*.jar"))
    victim.write_bytes(b"of another user")
    stamps = json.loads((directory / "verified.json").read_text())
    found = victim.stat()
    stamps[victim.name][:2] = [found.st_size, found.st_mtime_ns]
    (directory / "verified.json").write_text(json.dumps(stamps))


@pytest.mark.parametrize(
    "place", ["..", "", "jars", f"jars/{SET}", f"jars/{SET}/verified.json", f"jars/{SET}/*pool2*"]
)
def test_a_cache_that_others_may_write_is_refused(own_cache: Path, place: str) -> None:
    _plant(own_cache)
    root = own_cache.parents[1]
    (open_one,) = root.glob(place) if place not in ("", "..") else [(root / place).resolve()]
    mode = open_one.stat().st_mode
    open_one.chmod(mode | 0o020)
    try:
        result = CliRunner().invoke(main, ["jars", "--pyspark", "4.2.0"])
    finally:
        open_one.chmod(mode)
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.match(rf"Error: {open_one} has mode 0\d+, so others may write", result.stderr)
    assert f"chmod go-w {open_one}" in result.stderr
    assert "SPARK_EOS_CACHE" in result.stderr


@needs_root
@pytest.mark.parametrize("place", [f"jars/{SET}", f"jars/{SET}/verified.json"])
def test_a_cache_of_another_user_is_refused(own_cache: Path, place: str) -> None:
    _plant(own_cache)
    theirs = own_cache.parents[1] / place
    os.chown(theirs, NOBODY, NOBODY)
    with pytest.raises(jar_sets.JarError, match=f"{theirs} belongs to user id {NOBODY}.*SPARK_EOS"):
        jar_sets.jar_set(SET)


@needs_root
def test_a_cache_behind_another_users_link_is_refused(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory such as /tmp, where all users may create links and change their own."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / "link"
    link.symlink_to(own_cache.parents[1])
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(link))
    assert len(jar_sets.jar_set(SET)) == 4
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(jar_sets.JarError, match=f"{link} belongs to user id {NOBODY}"):
        jar_sets.jar_set(SET)


def test_downloaded_jars_can_not_be_changed_by_others(own_cache: Path) -> None:
    next(own_cache.glob("commons-pool2-*.jar")).unlink()
    before = os.umask(0)
    try:
        jar_sets.jar_set(SET)
    finally:
        os.umask(before)
    assert [oct(path.stat().st_mode & 0o022) for path in own_cache.iterdir()] == ["0o0"] * 6
    assert (own_cache / ".lock").stat().st_mode & 0o777 == 0o600
    jar_sets.jar_set(SET)


def test_a_lock_is_not_waited_for_for_ever(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cache, "_SILENT_SECONDS", 0.1)
    monkeypatch.setattr(cache, "_LOCK_SECONDS", 0.5)
    lock = own_cache / ".lock"
    with FileLock(lock), pytest.raises(jar_sets.JarError, match=f"lock {lock}.*fuser -v {lock}"):
        jar_sets.jar_set(SET)
    assert f"Waiting for the process that holds {lock}" in capfd.readouterr().err


def test_an_error_of_a_command_moves_no_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "cache\x1b[2J\x9b"
    theirs.mkdir()
    theirs.chmod(0o777)
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(theirs))
    result = CliRunner().invoke(main, ["jars"])
    assert result.stderr.startswith(f"Error: {tmp_path}/cache\\x1b[2J\\x9b has mode 0777")
    assert result.stderr.removesuffix("\n").isprintable()


def test_sink_read_accepts_the_options_of_sparks_kafka_source(
    genuine: list[Path],
) -> None:
    (jar,) = [jar for jar in genuine if jar.name.startswith("spark-sql-kafka-0-10_")]
    with zipfile.ZipFile(jar) as classes:
        provider = classes.read("org/apache/spark/sql/kafka010/KafkaSourceProvider$.class")
    names = [name for name in source_options._KNOWN if not name.startswith("kafka.")]
    assert [name for name in names if name.encode() not in provider] == []
