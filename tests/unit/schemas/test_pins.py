"""Which versions of subjects a query has begun with, in its checkpoint's directory."""

from dataclasses import replace
from pathlib import Path

import pytest

from spark_eos._driver.checkpoint_files import ArrowFiles
from spark_eos.errors import FormatVersionError
from spark_eos.schemas.client import Registered
from spark_eos.schemas.formats import Schema
from spark_eos.schemas.pins import Pins

PIN = Registered(
    "a/b %-välue", 3, 7, None, Schema("AVRO", '"string"', (("shop.Line", '"int"'), ("x", "{}")))
)


@pytest.fixture
def pins(tmp_path: Path) -> Pins:
    return Pins(ArrowFiles(str(tmp_path)))


def test_the_last_one_counts_and_each_subject_has_its_own(pins: Pins) -> None:
    assert pins.read(PIN.subject) is None
    pins.write(PIN)
    pins.write(replace(PIN, subject="_hidden", version=1))
    for version in range(4, 15):
        pins.write(replace(PIN, version=version, guid="g"))
    assert pins.read(PIN.subject) == replace(PIN, version=14, guid="g")
    assert pins.read("_hidden") == replace(PIN, subject="_hidden", version=1)


def test_one_that_is_not_whole_does_not_count(pins: Pins, tmp_path: Path) -> None:
    pins.write(PIN)
    pins.write(replace(PIN, version=4))
    (last,) = tmp_path.rglob("2/part-0.txt")
    last.write_text(last.read_text(encoding="utf-8")[:40], encoding="utf-8")
    assert pins.read(PIN.subject) == PIN
    pins.write(replace(PIN, version=5))
    assert pins.read(PIN.subject) == replace(PIN, version=5)


def test_another_format_is_refused(pins: Pins, tmp_path: Path) -> None:
    pins.write(PIN)
    (file,) = tmp_path.rglob("part-0.txt")
    text = file.read_text(encoding="utf-8").replace('"format": 2', '"format": 3')
    file.write_text(text, encoding="utf-8")
    with pytest.raises(FormatVersionError, match="the pinned schema"):
        pins.read(PIN.subject)
