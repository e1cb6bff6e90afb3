"""The marker in a checkpoint: there is a complete marker at all times, whoever writes it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_eos._checkpoint.files import ArrowFiles
from spark_eos._checkpoint.marker import Marker
from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._client.persisted import FORMAT
from spark_eos.errors import FormatVersionError

_ASYNCHRONOUS = Marker("group", checkpoint_may_lag=True)
_SYNCHRONOUS = Marker("group")


class _Killed(BaseException):
    """Raised where the process ends."""


class _Mortal:
    """The file system of a process that is killed before one of its modifying calls."""

    def __init__(self, files: Any, calls: Iterator[int], last: int) -> None:
        self._files, self._calls, self._last = files, calls, last

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._files, name)
        if not name.startswith(("create", "delete", "move", "open_output")):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            if next(self._calls) < self._last:
                return found(*arguments, **named)
            if name == "open_output_stream":
                # What is written is not there in full.
                with found(*arguments, **named) as stream:
                    stream.write(b'{"group_id": "gro')
            raise _Killed

        return call


def _marker(location: Path) -> Marker:
    return OffsetLog(ArrowFiles(str(location))).markers.read()


def test_a_process_killed_while_writing_leaves_a_whole_marker(
    tmp_path: Path,
) -> None:
    for last in range(20):
        place = tmp_path / str(last)
        OffsetLog(ArrowFiles(str(place))).markers.write(_ASYNCHRONOUS)
        files = ArrowFiles(str(place))
        files._fs = _Mortal(files._fs, iter(range(20)), last)
        try:
            OffsetLog(files).markers.write(_SYNCHRONOUS)
        except _Killed:
            assert _marker(place).group_id == "group", f"killed before call {last}"
        else:
            assert last > 1
            break
        # Whatever is left, the next run's marker replaces it.
        OffsetLog(ArrowFiles(str(place))).markers.write(Marker("other"))
        assert _marker(place).group_id == "other"
    assert _marker(place) == _SYNCHRONOUS
    assert len(list(place.glob("spark-eos/marker/*"))) == 1


def test_a_frozen_run_does_not_clear_the_mark_of_a_newer_one(tmp_path: Path) -> None:
    def log() -> OffsetLog:
        return OffsetLog(ArrowFiles(str(tmp_path)))

    log().markers.write(_ASYNCHRONOUS)
    frozen, newer = log(), log()
    assert frozen.markers.read().checkpoint_may_lag
    newer.markers.write(_ASYNCHRONOUS)
    # Its batch has reached the offsets that it has read, so the log would lie behind no more.
    frozen.markers.write(_SYNCHRONOUS)
    assert _marker(tmp_path).checkpoint_may_lag
    # The next one that has caught up clears both.
    log().markers.write(_SYNCHRONOUS)
    assert not _marker(tmp_path).checkpoint_may_lag


def test_a_run_that_reads_while_another_notes_finds_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    OffsetLog(ArrowFiles(str(tmp_path))).markers.write(_ASYNCHRONOUS)
    names = ArrowFiles.names

    def names_of_then(files: ArrowFiles, path: str) -> list[str]:
        found = names(files, path)
        monkeypatch.setattr(ArrowFiles, "names", names)
        OffsetLog(ArrowFiles(str(tmp_path))).markers.write(Marker("other"))
        return found

    monkeypatch.setattr(ArrowFiles, "names", names_of_then)
    assert _marker(tmp_path).group_id == "other"


def test_a_marker_records_exactly_which_partitions_were_read() -> None:
    marker = Marker("group", {}, partitions={"orders": frozenset(range(0, 20_000, 2))})
    assert Marker.parse(marker.text()) == marker


@pytest.mark.parametrize(
    "name",
    ["7-00000000/part-0.txt", "part-0.txt"],
    ids=["of the directory before", "without a number"],
)
def test_an_earlier_marker_is_read_and_replaced(tmp_path: Path, name: str) -> None:
    old = tmp_path / "spark-eos" / "note" / name
    old.parent.mkdir(parents=True)
    old.write_text(_ASYNCHRONOUS.text())
    assert _marker(tmp_path) == _ASYNCHRONOUS
    OffsetLog(ArrowFiles(str(tmp_path))).markers.write(_SYNCHRONOUS)
    assert _marker(tmp_path) == _SYNCHRONOUS
    (new,) = tmp_path.glob("spark-eos/marker/*")
    assert new.name.startswith("8-" if name.startswith("7") else "1-")


def test_a_marker_written_meanwhile_by_an_earlier_version_counts(tmp_path: Path) -> None:
    OffsetLog(ArrowFiles(str(tmp_path))).markers.write(_SYNCHRONOUS)
    old = tmp_path / "spark-eos" / "note" / "1-00000000" / "part-0.txt"
    old.parent.mkdir(parents=True)
    old.write_text(_ASYNCHRONOUS.text())
    assert _marker(tmp_path).checkpoint_may_lag
    # The next run's replaces both.
    OffsetLog(ArrowFiles(str(tmp_path))).markers.write(_SYNCHRONOUS)
    assert _marker(tmp_path) == _SYNCHRONOUS


@pytest.mark.parametrize("key", ["spark-eos", "format"])
@pytest.mark.parametrize("format_", [None, 1, FORMAT + 1, "2", True])
def test_a_marker_of_another_format_is_refused(format_: object, key: str) -> None:
    fields = {**json.loads(Marker("group").text()), key: format_}
    if format_ is None or key == "format":
        del fields["spark-eos"]
    with pytest.raises(FormatVersionError, match=f"reads only format {FORMAT}"):
        Marker.parse(json.dumps(fields))
