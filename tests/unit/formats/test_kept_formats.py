"""Files and texts of format 2 can still be read; `format-2.json` is never regenerated."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from spark_eos._checkpoint.marker import DIRECT, MIRRORED, STAGED, Marker
from spark_eos._client.letter_headers import read_letter_headers
from spark_eos._kafka.offset_metadata import CommittedOffset, KnownPartitions, is_position
from spark_eos._kafka.stored_text import Owner, SourcePartition, StagedBatch, SuspectRange
from spark_eos._kafka.topic_partition import TopicPartition

_KEPT: dict[str, Any] = json.loads(Path(__file__).with_name("format-2.json").read_text())
_ID = uuid.UUID("00000007-0000-0000-0000-000000000000")
_SOURCE = SourcePartition("9dZ-cluster", "orders", _ID, 3)
_PROGRESS = TopicPartition("spark-eos-progress", 0)


def test_offsets_of_a_direct_query() -> None:
    texts = _KEPT["offsets"]["direct"]
    known = KnownPartitions.of(
        {TopicPartition("orders", int(p)): CommittedOffset(9, text) for p, text in texts.items()}
    )
    assert known.partitions == {TopicPartition("orders", 0), TopicPartition("orders", 1)}
    assert known.suspects == {TopicPartition("orders", 1): SuspectRange(3, 9)}
    assert known.topics == ("00000007",)
    # The field came later, under the same number.
    assert known.owners == {}


def test_offsets_that_name_their_owner() -> None:
    text = '{"spark-eos":2,"partitions":"0","topics":"","owner":["5f1c0a7e","copy"]}'
    found = {TopicPartition("orders", 0): CommittedOffset(9, text)}
    assert KnownPartitions.of(found).owners == {"orders": frozenset([Owner("5f1c0a7e", "copy")])}


def test_offsets_of_a_mirrored_query() -> None:
    found = {_PROGRESS: CommittedOffset(9, _KEPT["offsets"]["mirrored"])}
    assert KnownPartitions.of(found).sources == {_PROGRESS: _SOURCE}


def test_a_staged_commit() -> None:
    found = {_PROGRESS: CommittedOffset(7, _KEPT["offsets"]["staged"])}
    batch = StagedBatch("5f1c", 7, "7-ab12cd34", 1_000, 32, "00d1e4a77b3c9f52")
    assert KnownPartitions.of(found).staged == {_PROGRESS: batch}


def test_a_published_position() -> None:
    assert is_position(_KEPT["offsets"]["position"])


@pytest.mark.parametrize(
    ("delivery", "expected"),
    [
        (DIRECT, {"partitions": {"orders": frozenset({0, 1})}, "checkpoint_may_lag": True}),
        (MIRRORED, {"delivery": MIRRORED, "sources": {0: _SOURCE}}),
        (STAGED, {"delivery": STAGED, "progress_partitions": 33}),
    ],
)
def test_markers_of_checkpoints(delivery: str, expected: dict[str, Any]) -> None:
    assert Marker.parse(_KEPT["markers"][delivery]) == Marker("g", {"orders": _ID}, **expected)


@pytest.mark.parametrize("style", ["dlq", "streams", "connect"])
def test_dead_letters(style: str) -> None:
    headers = [(name, text.encode()) for name, text in _KEPT["dead_letters"][style]]
    found = read_letter_headers(headers)
    error_headers = {"topic": b"orders", "partition": b"1", "offset": b"7", "reason": b"error"}
    assert (found.own, found.error_headers) == ([("trace", b"t")], error_headers)
