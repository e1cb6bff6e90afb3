"""Checkpoints read without a JVM: supported locations."""

from pathlib import Path

import pytest

from spark_eos import errors
from spark_eos._checkpoint.files import ArrowFiles, local_directory


@pytest.mark.parametrize(
    ("location", "directory"),
    [
        ("/a/b c", "/a/b c"),
        ("relative", "relative"),
        ("file:/a%20b", "/a%20b"),
        ("file:///a#b", "/a#b"),
        ("file://localhost/a", "/a"),
        ("s3a://bucket/a", None),
        ("dbfs:/a", None),
    ],
)
def test_locations_that_may_lie_on_this_host(location: str, directory: str | None) -> None:
    assert local_directory(location) == (None if directory is None else Path(directory))


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_local_checkpoints(tmp_path: Path, form: str) -> None:
    # Hadoop takes nothing in it for an escape.
    base = tmp_path / "a b%20c"
    (base / "offsets").mkdir(parents=True)
    for name in ("0", "10", ".0.crc", "_x"):
        (base / "offsets" / name).write_text("text")
    files = ArrowFiles(form.format(base))
    assert files.names("offsets") == ["0", "10"]
    assert files.names("state") == []
    assert (files.read("offsets/10"), files.read("metadata")) == ("text", None)


def test_what_can_not_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()  # where there should be a file
    with pytest.raises(errors.CheckpointError, match=r"checkpoint_location '.*' can't be used"):
        ArrowFiles(str(tmp_path)).read("metadata")


def test_relative_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("metadata").write_text("text")
    assert ArrowFiles(".").read("metadata") == "text"


@pytest.mark.parametrize("location", ["dbfs:/checkpoints/x", "wasb://c@account/x"])
def test_file_systems_that_are_not_known_here(location: str) -> None:
    with pytest.raises(errors.CheckpointError, match=r"checkpoint_location '.*' can't be used"):
        ArrowFiles(location).read("metadata")


def test_buckets_have_one_name_here_and_two_in_hadoop() -> None:
    assert ArrowFiles("s3a://bucket/c?region=eu-west-1")._base == "bucket/c"
