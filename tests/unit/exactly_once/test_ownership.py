"""Recognizing another query's offsets by their texts."""

from dataclasses import replace

import pytest

from spark_eos._delivery.ownership import (
    check_owner,
    deliveries_of,
    nothing_staged,
    owners_of,
    ownership_change,
)
from spark_eos._kafka.cluster import NO_ID
from spark_eos._kafka.offset_metadata import CommittedOffset, KnownPartitions
from spark_eos._kafka.stored_text import Owner, SourcePartition, StagedBatch
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.sources import Sources
from spark_eos.errors import ConfigurationError

_OWN = Owner("own", "out")
_SAME_TARGET = Owner("other", "out")
_ELSEWHERE = Owner("other", "elsewhere")
_READ = [TopicPartition("in", 0)]
_SOURCES = Sources()


def _known(**owners: Owner) -> KnownPartitions:
    """Offsets of some topics, each naming one owner."""
    known = KnownPartitions(owners={topic: frozenset({owner}) for topic, owner in owners.items()})
    return known.including([TopicPartition(topic, 0) for topic in owners], {})


def _check(
    known: KnownPartitions, moved_from: str | None = None, begun_with: str | None = None
) -> None:
    check_owner("group", _OWN, known, _SOURCES, _READ, moved_from, begun_with=begun_with)


@pytest.mark.parametrize(
    ("known", "moved_from", "begun_with"),
    [
        (KnownPartitions(), None, None),
        # Of an earlier version, whose texts tell no owner.
        (KnownPartitions(frozenset({TopicPartition("before", 0)})), None, None),
        (_known(**{"in": _OWN}), None, None),
        (_known(**{"in": Owner("own", "elsewhere")}), None, None),
        (_known(**{"in": _ELSEWHERE, "more": Owner("third", None)}), "other, third", None),
        # By its checkpoint it has gone on from that query's offsets already.
        (_known(**{"in": _SAME_TARGET}), None, "group"),
        # Written to the same topic, and so not written again.
        (_known(**{"in": _SAME_TARGET}), None, None),
        # It has read other topics before, and is renamed.
        (_known(before=_OWN, more=_SAME_TARGET), None, None),
    ],
)
def test_its_own_offsets(
    known: KnownPartitions, moved_from: str | None, begun_with: str | None
) -> None:
    _check(known, moved_from, begun_with)


@pytest.mark.parametrize(
    ("known", "moved_from", "begun_with", "what"),
    [
        (_known(**{"in": _ELSEWHERE}), None, None, "other, which writes to 'elsewhere'"),
        (_known(**{"in": _ELSEWHERE}), None, "group", "other, which writes to 'elsewhere'"),
        (_known(**{"in": _ELSEWHERE}), "third", None, "other, which writes to 'elsewhere'"),
        (_known(**{"in": Owner("other", None)}), None, None, "the topics that its rows name"),
        (_known(**{"in": _SAME_TARGET}), None, "older", "checkpoint is of group 'older'"),
        (_known(before=_SAME_TARGET), None, None, "which reads 'before', not 'in'"),
    ],
)
def test_those_of_another_query(
    known: KnownPartitions, moved_from: str | None, begun_with: str | None, what: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"owned by query .*{what}.*moved_from='other'"):
        _check(known, moved_from, begun_with)


@pytest.mark.parametrize(
    ("owners", "new", "change"),
    [
        ([], False, ""),
        ([], True, "the checkpoint is new, and the group has offsets of another query"),
        ([_OWN, _ELSEWHERE], True, ""),
        ([Owner("own", "before")], False, "the topic is 'out' now, and was 'before'"),
        ([_ELSEWHERE], False, ""),
        ([_ELSEWHERE], True, "offsets of query other, which wrote to 'elsewhere'"),
    ],
)
def test_what_has_changed_since(owners: list[Owner], new: bool, change: str) -> None:  # noqa: FBT001
    found = ownership_change(_OWN, owners, new=new)
    assert change in found
    assert bool(found) == bool(change)


def test_owners_are_those_of_the_topics_that_are_read() -> None:
    known = _known(**{"in": _OWN, "before": _ELSEWHERE})
    assert owners_of(known, _READ) == {_OWN}
    assert owners_of(known, [TopicPartition("before", 0)]) == {_ELSEWHERE}


_PROGRESS = [TopicPartition("progress", number) for number in (0, 1)]
_NOTHING = KnownPartitions().including(_PROGRESS, {})
_STAGED = replace(_NOTHING, staged={_PROGRESS[0]: StagedBatch("own", 0, None, 0, 2, "0" * 16)})


def _committed(known: KnownPartitions, at: int) -> dict[TopicPartition, CommittedOffset]:
    """The offsets of a staged query's progress partitions."""
    return {p: CommittedOffset(at, text) for p, text in known.texts(_PROGRESS).items()}


def test_nothing_is_staged_if_only_a_start_set_the_staged_commit() -> None:
    started = _committed(_NOTHING, 0)
    assert nothing_staged(started, "progress")
    assert not nothing_staged(started, "another topic")
    assert not nothing_staged({}, "progress")
    assert not nothing_staged(_committed(_NOTHING, 1), "progress")
    assert not nothing_staged(_committed(_STAGED, 0), "progress")
    # An operator may have set one that named a batch.
    assert not nothing_staged({**started, _PROGRESS[0]: CommittedOffset(0, "")}, "progress")
    assert nothing_staged({**started, _PROGRESS[1]: CommittedOffset(0, "")}, "progress")
    del started[_PROGRESS[0]]
    assert not nothing_staged(started, "progress")


def test_texts_show_the_delivery() -> None:
    source = SourcePartition("cluster", "in", NO_ID, 0)
    assert deliveries_of(_NOTHING) == []
    assert deliveries_of(_STAGED) == ["staged"]
    assert deliveries_of(replace(_NOTHING, sources={_PROGRESS[0]: source})) == ["mirrored"]
