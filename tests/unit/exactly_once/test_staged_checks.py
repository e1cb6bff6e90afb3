"""Checks that a checkpoint and a group's staged commit belong together."""

import pytest

from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._client.commands import Group
from spark_eos._delivery.staged_checks import StagedChecks
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.progress_topic import first_position
from spark_eos._kafka.stored_text import Owner, StagedBatch
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._worker.plan import BatchRange
from spark_eos.acls import Principal
from spark_eos.errors import (
    CheckpointError,
    FencedByNewerRunError,
    OffsetsLostError,
    SparkEosError,
    WriteError,
)
from support.checkpoint_texts import CheckpointTexts

_CHECKS = StagedChecks(Group("group", Principal(None, "kafka:9092")), "progress")
_QUERY = "4a2c9d1e-0000-4000-8000-000000000000"
_0, _1 = TopicPartition("progress", 0), TopicPartition("progress", 1)


def _log(begun: int) -> OffsetLog:
    """For a query that has begun some batches."""
    entries = {
        f"offsets/{batch}": f'v1\n{{"batchTimestampMs":{batch}}}\n{{"in":{{"0":{batch}}}}}'
        for batch in range(begun + 1)
    }
    return OffsetLog(CheckpointTexts({"metadata": f'{{"id":"{_QUERY}"}}', **entries}))


def _staged(batch: int, query: str = _QUERY, fingerprint: str | None = None) -> StagedBatch:
    found = fingerprint or _log(batch).fingerprint(batch)
    return StagedBatch(query, batch, f"{batch}-0123abcd", 5, 2, found)


@pytest.mark.parametrize(
    ("last", "batch"), [(_staged(3), 3), (_staged(3), 4)], ids=["repeated", "the next one"]
)
def test_a_batch_that_follows_the_one_staged_last(last: StagedBatch, batch: int) -> None:
    _CHECKS.check_belongs(last, batch, _log(batch), [])


@pytest.mark.parametrize(
    ("last", "batch", "begun", "error", "words"),
    [
        (
            _staged(3, "ffffffff-0"),
            3,
            3,
            CheckpointError,
            "of query ffffffff-0, which writes to 'o'",
        ),
        (_staged(3, fingerprint="0" * 16), 3, 3, CheckpointError, "from other source offsets"),
        (_staged(3), 2, 3, FencedByNewerRunError, "gone on to batch 3 meanwhile"),
        (_staged(3), 2, 2, CheckpointError, "is at batch 2: an older checkpoint was restored"),
        (_staged(3), 5, 5, CheckpointError, "is at batch 5: batches between them were not written"),
    ],
)
def test_a_batch_that_does_not(
    last: StagedBatch, batch: int, begun: int, error: type[SparkEosError], words: str
) -> None:
    with pytest.raises(error, match=words):
        _CHECKS.check_belongs(last, batch, _log(begun), [Owner("ffffffff", "o"), Owner("x", "p")])


def _batch(number: int) -> BatchRange:
    start, end = first_position(number), first_position(number + 1)
    return BatchRange(number, {_0: start, _1: start}, {_0: end, _1: end})


@pytest.mark.parametrize(
    ("last", "committed"),
    [
        (None, {_0: first_position(3), _1: first_position(3)}),
        (_staged(2), {_0: first_position(3), _1: first_position(3)}),
        (_staged(3), {_0: first_position(3), _1: first_position(3) + 2}),
    ],
    ids=["first", "begun", "half written"],
)
def test_offsets_that_a_run_has_committed(last: StagedBatch | None, committed: Positions) -> None:
    _CHECKS.check_positions(last, _batch(3), committed)


@pytest.mark.parametrize(
    ("last", "zero", "one", "words"),
    [
        (None, 1, 0, "the staged commit of group 'group' was lost: .* whether batch 3 was written"),
        (None, -1, 0, "the staged commit of group 'group' was lost"),
        (_staged(2), 0, -1, "committed progress-1 up to .* the batch before it is not fully"),
        (_staged(3), 0, -1, "committed progress-1 up to .* the batch before it is not fully"),
        (_staged(2), 0, 1, "committed progress-1 up to .* names no copy of batch 3"),
        (None, 0, 1, "committed progress-1 up to .* names no copy of batch 3"),
    ],
)
def test_offsets_that_no_run_has_committed(
    last: StagedBatch | None, zero: int, one: int, words: str
) -> None:
    start = first_position(3)
    with pytest.raises(OffsetsLostError, match=f"{words}.*--topic progress --to-earliest"):
        _CHECKS.check_positions(last, _batch(3), {_0: start + zero, _1: start + one})


def test_another_progress_topic() -> None:
    staged = KnownPartitions(staged={TopicPartition("before", 0): _staged(3)})
    with pytest.raises(CheckpointError, match="set progress_topic='before'"):
        _CHECKS.check_topic(staged, "")
    _CHECKS.check_topic(KnownPartitions(staged={_0: _staged(3)}), "")


def test_batch_positions_do_not_overlap_and_stay_in_kafkas_range() -> None:
    last = (1 << 30) - 1
    assert [first_position(n) for n in (0, 1, 7)] == [0, 1 << 32, 7 << 32]
    assert first_position(last) < 1 << 62
    with pytest.raises(WriteError, match=f"batch {last + 1} does not fit .* another group_id"):
        first_position(last + 1)
