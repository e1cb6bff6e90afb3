"""The checks of a staged query's output and files, with made-up outputs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chaos.every_load import EVERY_STAGED_LOAD
from chaos.invariants import Category, Rule, Violation
from chaos.staged_files import StagedFiles
from chaos.staged_judging import differences, not_ended, not_of_one_copy, not_swept, out_of_order
from chaos.staged_places import BEFORE_SWEEP, ask, is_reached, obeys, take_back
from spark_eos._kafka.offset_metadata import CommittedOffset, KnownPartitions
from spark_eos._kafka.stored_text import StagedBatch
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.verify import Comparison, Difference, Finding

_TOPIC = "progress"


@dataclass(frozen=True)
class _Message:
    """The part of confluent_kafka's Message that is used."""

    at: int
    row_key: bytes
    row_value: bytes
    attempt: str | None = None

    def key(self) -> bytes:
        return self.row_key

    def value(self) -> bytes:
        return self.row_value

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.at

    def headers(self) -> list[tuple[str, bytes]] | None:
        return None if self.attempt is None else [("attempt", self.attempt.encode())]


def _messages(*rows: tuple[Any, ...]) -> Any:
    return {"out": [_Message(at, *row) for at, row in enumerate(rows)]}


def _rules(found: list[Violation]) -> list[Rule]:
    return [violation.rule for violation in found]


def test_rows_of_two_attempts_at_one_batch() -> None:
    one = [(b"a", b"", "7:aa"), (b"b", b"", "7:aa"), (b"a", b"", "8:bb")]
    assert not_of_one_copy(_messages(*one, (b"a", b"{}"))) == []
    assert _rules(not_of_one_copy(_messages(*one, (b"c", b"", "7:cc")))) == [Rule.ONE_COPY]


def _numbered(key: bytes, number: int) -> tuple[bytes, bytes]:
    return key, b"%012dxx" % number


def _counted(key: bytes, count: int) -> tuple[bytes, bytes]:
    return key, json.dumps({"count": count}).encode()


def _encoded(key: bytes, number: int) -> tuple[bytes, bytes]:
    return key, b"\0\0\0\0\7%012dxx" % number


@pytest.mark.parametrize(
    ("row", "load"), [(_numbered, "shuffled"), (_encoded, "prices"), (_counted, "totals")]
)
def test_rows_of_a_key_that_are_not_in_order(row: Any, load: str) -> None:
    of_load = EVERY_STAGED_LOAD[load]
    good = [row(b"a", 2), row(b"b", 1), row(b"a", 3)]
    assert out_of_order(_messages(*good), of_load) == []
    assert _rules(out_of_order(_messages(*good, row(b"b", 0)), of_load)) == [Rule.IN_ORDER]
    # Windows of one key are independent.
    windows = _messages(_counted(b"a", 2), _counted(b"a", 1))
    assert out_of_order(windows, EVERY_STAGED_LOAD["windows"]) == []


@pytest.mark.parametrize("kind", Difference)
def test_each_difference_violates_a_rule(kind: Difference) -> None:
    found = Comparison(rows_expected=1, records_out=1, by_key=False, found={kind: Finding(1)})
    (violation,) = differences(found, drained=True)
    assert violation.rule.category is Category.INVARIANT
    # Missing rows may still come.
    before = bool(differences(found, drained=False))
    assert before == (kind not in {Difference.MISSING, Difference.OPEN})


def _checkpoint(directory: Path, batches: int, *copies: str) -> StagedFiles:
    (directory / "commits").mkdir(parents=True)
    (directory / "offsets").mkdir()
    for batch in range(batches):
        (directory / "commits" / str(batch)).touch()
        (directory / "commits" / f".{batch}.crc").touch()
        ends = json.dumps({"in": {"0": 10 * (batch + 1), "1": batch}})
        (directory / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{ends}")
    for copy in copies:
        (directory / "spark-eos" / "staged" / copy).mkdir(parents=True)
    return StagedFiles(directory)


def test_how_far_a_checkpoint_is(tmp_path: Path) -> None:
    files = _checkpoint(tmp_path / "none", 0)
    assert (files.last_batch(), files.records_processed()) == (-1, 0)
    files = _checkpoint(tmp_path / "some", 3)
    assert (files.last_batch(), files.records_processed()) == (2, 32)
    # A record is replaced by another, and then restored.
    (tmp_path / "some").rename(tmp_path / "aside")
    assert files.records_processed() == 32


def test_a_batch_whose_end_is_not_committed(tmp_path: Path) -> None:
    files = _checkpoint(tmp_path, 2)
    first, second = TopicPartition(_TOPIC, 0), TopicPartition(_TOPIC, 1)
    at_the_end = {first: 2 << 32, second: 2 << 32}
    assert not_ended(files, at_the_end, _TOPIC, 2) == []
    for wrong in ({second: (1 << 32) + 7}, {second: 3 << 32}):
        assert _rules(not_ended(files, at_the_end | wrong, _TOPIC, 2)) == [Rule.BATCH_ENDED]
    assert _rules(not_ended(files, at_the_end, _TOPIC, 3)) == [Rule.BATCH_ENDED]


def test_copies_that_are_left(tmp_path: Path) -> None:
    assert not_swept(_checkpoint(tmp_path / "a", 10, "9-aa", "9-bb")) == []
    assert _rules(not_swept(_checkpoint(tmp_path / "b", 10, "9-aa", "8-bb"))) == [Rule.COPIES_SWEPT]


def _staged_commit(batch: StagedBatch) -> dict[TopicPartition, CommittedOffset]:
    partition = TopicPartition(_TOPIC, 0)
    text = KnownPartitions(staged={partition: batch}).texts([partition])[partition]
    return {partition: CommittedOffset(1 << 32, text)}


def test_a_missing_copy_that_the_staged_commit_names(tmp_path: Path) -> None:
    files = _checkpoint(tmp_path, 1, "1-aaaaaaaa")
    known = _staged_commit(StagedBatch("q", 1, "1-aaaaaaaa", 3, 2, "0" * 16))
    assert files.missing_copies(known) == ["1-aaaaaaaa"]
    (tmp_path / "spark-eos" / "staged" / "1-aaaaaaaa" / "part-00000.parquet").touch()
    assert files.missing_copies(known) == []
    assert files.missing_copies(_staged_commit(StagedBatch("q", 1, None, 0, 2, "0" * 16))) == []


def test_only_one_process_stops_at_a_place(tmp_path: Path) -> None:
    assert not obeys(tmp_path, BEFORE_SWEEP)
    for _ in range(2):
        ask(tmp_path, BEFORE_SWEEP)
        assert not is_reached(tmp_path, BEFORE_SWEEP)
        assert obeys(tmp_path, BEFORE_SWEEP)
        assert is_reached(tmp_path, BEFORE_SWEEP)
        assert not obeys(tmp_path, BEFORE_SWEEP)
    ask(tmp_path, BEFORE_SWEEP)
    assert take_back(tmp_path, BEFORE_SWEEP)
    assert not obeys(tmp_path, BEFORE_SWEEP)
