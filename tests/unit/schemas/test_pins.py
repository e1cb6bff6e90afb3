"""The subject versions that a query began with, stored in its checkpoint's directory."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spark_eos._checkpoint.files import ArrowFiles
from spark_eos.errors import CheckpointError, FormatVersionError
from spark_eos.schemas.client import Registered
from spark_eos.schemas.formats import Schema
from spark_eos.schemas.pins import DECODE, ENCODE, Pins

SCHEMA = Schema("AVRO", '"string"', (("shop.Line", '"int"'), ("x", "{}")))
PIN = Registered("http://a:8081", "a/b %-välue", 3, 7, None, SCHEMA)


@pytest.fixture
def pins(tmp_path: Path) -> Pins:
    return Pins(ArrowFiles(str(tmp_path)), DECODE)


def _files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("part-0.txt"))


def test_the_last_pin_counts_for_each_subject_and_role(pins: Pins, tmp_path: Path) -> None:
    assert pins.read(PIN.subject) is None
    pins.write(PIN)
    pins.write(replace(PIN, subject="_hidden", version=1))
    for version in range(4, 15):
        pins.write(replace(PIN, version=version, guid="g"))
    assert pins.read(PIN.subject) == replace(PIN, version=14, guid="g")
    assert pins.read("_hidden") == replace(PIN, subject="_hidden", version=1)
    others = Pins(ArrowFiles(str(tmp_path)), ENCODE)
    assert others.read(PIN.subject) is None
    others.write(replace(PIN, version=9))
    assert others.read(PIN.subject) == replace(PIN, version=9)
    assert pins.read(PIN.subject) == replace(PIN, version=14, guid="g")


def test_the_same_one_is_not_written_again(pins: Pins, tmp_path: Path) -> None:
    for pin in (PIN, PIN, replace(PIN, version=4), PIN):
        pins.write(pin)
    assert len(_files(tmp_path)) == 3
    assert pins.read(PIN.subject) == PIN


def test_a_directory_without_a_file_was_left_by_a_killed_driver(pins: Pins, tmp_path: Path) -> None:
    pins.write(PIN)
    (file,) = _files(tmp_path)
    (file.parent.parent / "decode-2").mkdir()
    assert pins.read(PIN.subject) == PIN


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:40], "is not a pinned schema, or not a complete one"),
        (lambda _: "", "is not a pinned schema, or not a complete one"),
        (lambda _: '["format"]', "is not a pinned schema, or not a complete one"),
        (lambda text: text.replace('"number"', '"id"'), "is not a pinned schema"),
        (lambda text: text.replace('"text"', '"body"'), "is not a pinned schema"),
        (lambda text: text.replace('"decode"', '"encode"'), "is the encode pin"),
        (lambda text: text.replace('"a/b', '"c/b'), "of subject 'c/b"),
    ],
)
def test_one_that_can_not_be_read_is_no_older_one(
    pins: Pins, tmp_path: Path, damage: Callable[[str], str], words: str
) -> None:
    pins.write(PIN)
    pins.write(replace(PIN, version=4))
    last = _files(tmp_path)[-1]
    last.write_text(damage(last.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"{last}.*{words}.*pass version= once"):
        pins.read(PIN.subject)
    # As it says.
    pins.write(replace(PIN, version=4))
    assert pins.read(PIN.subject) == replace(PIN, version=4)


def test_another_format_is_refused(pins: Pins, tmp_path: Path) -> None:
    pins.write(PIN)
    (file,) = _files(tmp_path)
    text = file.read_text(encoding="utf-8").replace('"format": 3', '"format": 4')
    file.write_text(text, encoding="utf-8")
    words = r"the pinned schema .* reads only format 3.*pass version= once"
    with pytest.raises(FormatVersionError, match=words):
        pins.read(PIN.subject)


def test_what_an_earlier_version_has_pinned_is_not_passed_over(pins: Pins, tmp_path: Path) -> None:
    pins.write(PIN)
    (file,) = _files(tmp_path)
    file.parent.rename(file.parent.parent / "1")
    with pytest.raises(
        CheckpointError, match="1 is not a pinned schema of this version of spark-eos"
    ):
        pins.read(PIN.subject)
