"""A partition without a committed offset: new, restored from the checkpoint, or refused."""

import uuid
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from spark_eos._checkpoint.marker import Marker
from spark_eos._client.commands import Group
from spark_eos._delivery.missing_offsets import Evidence
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._worker.plan import BatchRange
from spark_eos.acls import Principal
from spark_eos.errors import OffsetsLostError

_0, _1, _OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
_ID = uuid.uuid4()
_GROUP = Group("group", Principal(None, "kafka:9092"))
_NOTHING = KnownPartitions()
_OTHERS = KnownPartitions(frozenset({_OTHER}))
_SET = KnownPartitions(frozenset({_OTHER}), set_by_others=frozenset({_0}))
_NONE = Marker()
_REFUSED_THEN = Marker("group")
_NOTED = Marker("group", {"t": _ID})
_READ = Marker("group", {"t": _ID}, partitions={"t": frozenset({0, 1})})
_MAY_LAG = replace(_READ, checkpoint_may_lag=True)


class _Batch(NamedTuple):
    range: BatchRange
    committed: Positions


# The first one; a later one with a partition that was added; and one that has lost an offset.
_FIRST = _Batch(BatchRange(0, {_0: 3, _1: 0}, {_0: 9, _1: 9}), {})
_ADDED = _Batch(BatchRange(1, {_0: 5}, {_0: 9, _1: 4}), {_0: 5})
_LOST = _Batch(BatchRange(1, {_0: 5, _1: 5}, {_0: 9, _1: 9}), {_0: 5})
_LOST_IDLE = _Batch(BatchRange(1, {_0: 5, _1: 5}, {_0: 9, _1: 5}), {_0: 5})


def _evidence(marker: Marker, known: KnownPartitions = _NOTHING, **other: Any) -> Evidence:
    return Evidence(_GROUP, known, {"t": _ID}, marker, **{"begun_now": True, **other})


@pytest.mark.parametrize(
    ("evidence", "batch", "initial"),
    [
        (_evidence(_NONE), _FIRST, {_0: 3, _1: 0}),
        # A run was refused the group, which had offsets of other topics.
        (_evidence(_REFUSED_THEN, _OTHERS), _FIRST, {_0: 3, _1: 0}),
        # A new partition begins at its first record, whatever else is known.
        (_evidence(_NOTED, _OTHERS), _ADDED, {_1: 0}),
        (_evidence(replace(_NOTED, checkpoint_may_lag=True), _OTHERS), _ADDED, {_1: 0}),
        (_evidence(_NOTED, _SET), _ADDED, {_1: 0}),
        (_evidence(replace(_READ, topic_ids={"t": uuid.uuid4()})), _ADDED, {_1: 0}),
        # The checkpoint proves a lost one, unless its batch may be half written.
        (_evidence(_READ), _LOST, {_1: 5}),
        (_evidence(_READ, begun_now=False), _LOST_IDLE, {_1: 5}),
        # In a batch that was begun, others may be half written.
        (_evidence(_READ, begun_now=False), _LOST_IDLE._replace(committed={_0: 9}), {_1: 5}),
        # Nothing comes before the first record.
        (_evidence(_NOTED), _Batch(BatchRange(1, {_1: 0}, {_1: 4}), {}), {_1: 0}),
    ],
)
def test_new_or_restored(evidence: Evidence, batch: _Batch, initial: Positions) -> None:
    assert evidence.initial_offsets(batch.range, batch.committed) == initial


@pytest.mark.parametrize(
    ("evidence", "batch", "because"),
    [
        (_evidence(_NONE, KnownPartitions(frozenset({_1}))), _ADDED, "it had one before"),
        (_evidence(_NONE, KnownPartitions(frozenset({_0}))), _FIRST, "it had one before"),
        (_evidence(Marker("other")), _FIRST, "batch 0 was begun before, with group 'other'"),
        (_evidence(_NOTED), _FIRST, "batch 0 was begun before"),
        (_evidence(_READ), _FIRST, "batch 0 was begun before"),
        (_evidence(_REFUSED_THEN), _FIRST, "batch 0 begins at offsets that the group no longer"),
        (_evidence(_READ, _OTHERS), _ADDED, "the query has read it before"),
        (_evidence(Marker("group", checkpoint_may_lag=True)), _ADDED, "with asynchronous_progress"),
        (_evidence(_NONE, _SET), _ADDED, "offsets of its topic were set by another client"),
        # What another group has noted proves nothing for this one.
        (_evidence(Marker("other", {"t": _ID}), _SET), _ADDED, "offsets of its topic were set by"),
        (_evidence(replace(_READ, group_id="other")), _LOST, "batch 1 .* is another group's"),
        (_evidence(_NOTED), _LOST, "batch 1 starts at 5: the sink was not called"),
        (
            _evidence(_NOTED),
            _Batch(BatchRange(1, {_1: 1}, {_1: 4}), {}),
            "batch 1 starts at 1: the sink was not called",
        ),
    ],
)
def test_refused(evidence: Evidence, batch: _Batch, because: str) -> None:
    with pytest.raises(OffsetsLostError, match=f"although {because}.*set the group's") as refused:
        evidence.initial_offsets(batch.range, batch.committed)
    assert "everything below" not in str(refused.value)


@pytest.mark.parametrize(
    ("evidence", "committed", "because"),
    [
        (_evidence(_MAY_LAG), {_0: 5}, "with asynchronous_progress, more may be written than the"),
        (_evidence(_READ, begun_now=False), {_0: 5}, "batch 1, from 5 to 8, was begun"),
        # An older checkpoint was put back: the group is beyond its batch, or in the middle of one
        # that nothing is written of, by this checkpoint.
        (_evidence(_READ, begun_now=False), {_0: 10}, "the group's other offsets lie past"),
        (_evidence(_READ), {_0: 6}, "the group's other offsets lie past the checkpoint's"),
    ],
)
def test_the_refusal_includes_what_the_checkpoint_says(
    evidence: Evidence, committed: Positions, because: str
) -> None:
    with pytest.raises(OffsetsLostError, match=because) as refused:
        evidence.initial_offsets(_LOST.range, committed)
    assert "According to this checkpoint, everything below 5 is written." in str(refused.value)


def test_only_restored_offsets_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    _evidence(_READ).warn_of_restored(_LOST.range, {_0: 5, _OTHER: 7, _1: 0})
    [record] = caplog.records
    assert "the offset of t-0 was lost" in record.getMessage()
    _evidence(_READ).warn_of_restored(_FIRST.range, {_0: 3})
    assert caplog.records == [record]
