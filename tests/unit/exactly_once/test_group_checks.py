"""Group offsets that a run refuses."""

import pytest

from spark_eos._client.commands import Group
from spark_eos._delivery.gaps import check_no_gap, check_not_cut, log_lags
from spark_eos._exactly_once.checks import (
    check_no_suspects,
    check_not_moved_back,
    check_not_moved_on,
    check_same_pairs,
    check_same_staged,
    suspect_ranges,
)
from spark_eos._kafka.cluster import NO_ID
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.stored_text import SourcePartition, StagedBatch, SuspectRange
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._worker.plan import BatchRange
from spark_eos._worker.sources import Sources
from spark_eos.acls import Principal
from spark_eos.errors import (
    FencedByNewerRunError,
    OffsetGapError,
    OffsetsLostError,
    RecordsLostError,
)

_0, _1 = TopicPartition("t", 0), TopicPartition("t", 1)
_SOURCES = Sources()
_GROUP = Group("group", Principal(None, "kafka:9092"))


@pytest.mark.parametrize("now", [{_0: 5, _1: 0}, {_0: 6}])
def test_offsets_that_stay_or_go_on(now: Positions) -> None:
    # The second partition is another member's.
    check_not_moved_back("group", _SOURCES, {_0: 5, _1: 3}, now, [_0])


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (5, {_0: 4}, "had committed t-0 up to 5 and now has 4"),
        (5, {}, "up to 5 and now has no offset"),
        (1, {}, "up to 1 and now has no offset"),
        (0, {}, "up to 0 and now has no offset"),
    ],
)
def test_offsets_that_go_back(before: int, now: Positions, words: str) -> None:
    with pytest.raises(OffsetsLostError, match=words):
        check_not_moved_back("group", _SOURCES, {_0: before}, now, [_0])


def test_offsets_that_another_client_moves_on() -> None:
    check_not_moved_on(_GROUP, _SOURCES, {_0: 5, _1: 5}, {_0: 5, _1: 9}, {_0})
    with pytest.raises(OffsetsLostError, match=r"now has 9: .* offsets 5 to 8 are not written"):
        check_not_moved_on(_GROUP, _SOURCES, {_0: 5}, {_0: 9, _1: 9}, {_0, _1})


def _paired(number: int) -> KnownPartitions:
    return KnownPartitions(sources={_0: SourcePartition("cluster", "in", NO_ID, number)})


def test_a_progress_partition_stands_for_one_source_partition() -> None:
    check_same_pairs("group", _paired(1), _paired(1))
    check_same_pairs("group", KnownPartitions(), _paired(1))
    with pytest.raises(FencedByNewerRunError, match=r"has another source for t-0, .*partition=2"):
        check_same_pairs("group", _paired(1), _paired(2))


def _staging(batch: int) -> StagedBatch:
    return StagedBatch("query", batch, None, 0, 2, "0" * 16)


@pytest.mark.parametrize("now", [{}, {_0: _staging(2)}])
def test_a_staged_commit_of_another_run(now: dict[TopicPartition, StagedBatch]) -> None:
    known = KnownPartitions(staged=now)
    check_same_staged("group", {_0: [_staging(1), now.get(_0)]}, known)
    words = "has staged .*batch=2" if now else "has no staged commit any more"
    with pytest.raises(FencedByNewerRunError, match=words):
        check_same_staged("group", {_0: [_staging(1)]}, known)


def test_ranges_that_may_not_all_be_written() -> None:
    starts, seen, committed = {_0: 5, _1: 5}, {_0: 8, _1: 7}, {_1: 9}
    added = TopicPartition("t", 2)
    found = suspect_ranges(starts, {**seen, added: 1}, committed)
    assert found == {_0: (5, 8), _1: (5, 9), added: (0, 1)}
    assert suspect_ranges(starts, {_0: 5, _1: 4, added: 0}, {}) == {}


def test_such_a_range_is_refused_with_where_to_begin() -> None:
    known = KnownPartitions(suspects={_0: SuspectRange(5, 8), _1: SuspectRange(0, 2)})
    check_no_suspects(_GROUP, _SOURCES, known, [TopicPartition("t", 2)])
    with pytest.raises(OffsetsLostError, match=r"rows of offsets 0 to 1 of t-1 may be missing"):
        check_no_suspects(_GROUP, _SOURCES, known, [_1])
    ranges = r"rows of offsets 5 to 7 of t-0 and offsets 0 to 1 of t-1 may be missing"
    cure = r"t-0 to 5, t-1 to 0 to write .*, or t-0 to 8, t-1 to 2 to continue .* t:0 .* t:1 "
    with pytest.raises(OffsetsLostError, match=f"{ranges}.*{cure}"):
        check_no_suspects(_GROUP, _SOURCES, known, [_0, _1])


@pytest.mark.parametrize(
    ("starts", "committed", "lags"),
    [
        ({_0: 5, _1: 5}, {_0: 5, _1: 5}, False),
        ({_0: 5, _1: 5}, {_0: 5, _1: 6}, True),
        # A new partition that has been committed before its batch is in the log.
        ({_0: 5}, {_0: 5, _1: 0}, True),
    ],
)
def test_logs_that_lie_behind_what_is_written(
    starts: Positions,
    committed: Positions,
    lags: bool,  # noqa: FBT001
) -> None:
    assert log_lags(starts, committed, [_0, _1]) is lags


def test_a_partition_that_ends_below_where_it_was_read_up_to() -> None:
    check_not_cut(_GROUP, BatchRange(1, {_0: 5, _1: 9}, {_0: 5}), _SOURCES)
    with pytest.raises(RecordsLostError, match=r"t-0 ends at 4.*offsets 4 to 6 would count"):
        check_not_cut(_GROUP, BatchRange(1, {_0: 7}, {_0: 4}), _SOURCES)


def test_a_batch_that_starts_where_the_group_is_or_before() -> None:
    added, gone = TopicPartition("t", 2), TopicPartition("gone", 0)
    batch = BatchRange(1, {_0: 5, _1: 5, gone: 5}, {_0: 8, _1: 8, added: 3})
    check_no_gap(_GROUP, batch, {_0: 5, _1: 9}, _SOURCES)


def test_a_batch_that_starts_beyond() -> None:
    with pytest.raises(OffsetGapError, match="offsets 3 to 4 would never be written"):
        check_no_gap(_GROUP, BatchRange(2, {_0: 5}, {_0: 8}), {_0: 3}, _SOURCES)
