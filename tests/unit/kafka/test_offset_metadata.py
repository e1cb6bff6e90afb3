"""Metadata of committed offsets: the partitions known to the group, and suspect ranges."""

import json
import random
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_eos._client.persisted import FORMAT
from spark_eos._kafka import offsets
from spark_eos._kafka.offset_metadata import CommittedOffset, KnownPartitions
from spark_eos._kafka.stored_text import Owner, SourcePartition, StagedBatch, SuspectRange
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import FormatVersionError

_A0, _A1 = TopicPartition("a", 0), TopicPartition("a", 1)
_PARTITIONS = st.frozensets(st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 40)))


@given(_PARTITIONS, st.dictionaries(st.sampled_from("abc"), st.uuids(version=4)))
def test_each_offset_names_all_partitions_of_its_topic(
    partitions: frozenset[TopicPartition], ids: dict[str, uuid.UUID]
) -> None:
    known = KnownPartitions().including(partitions, ids)
    for one in partitions:
        found = KnownPartitions.of({one: CommittedOffset(1, known.metadata(one.topic))})
        assert found.partitions == {p for p in partitions if p.topic == one.topic}
        assert found.topics == known.topics
        for other in partitions:
            # For other topics, texts say only that the topics were known, by listing their ids.
            expected = other.topic == one.topic or other.topic in ids
            assert found.knows(other, ids.get(other.topic)) == expected
        assert not found.knows(TopicPartition(one.topic, 41), ids.get(one.topic))


def test_a_suspect_range_is_recorded_for_its_partition_only() -> None:
    known = KnownPartitions(suspects={_A0: SuspectRange(3, 9)}).including([_A0, _A1], {})
    texts = known.texts([_A0, _A1])
    found = {partition: CommittedOffset(9, text) for partition, text in texts.items()}
    assert KnownPartitions.of(found).suspects == {_A0: SuspectRange(3, 9)}


_STAGED = StagedBatch(str(uuid.UUID(int=1)), 7, "7-ab12cd34", 1_000, 32, "00d1e4a77b3c9f52")


@pytest.mark.parametrize("staged", [_STAGED, _STAGED._replace(directory=None, rows=0)])
def test_a_staged_batch_is_read_from_its_own_offset(staged: StagedBatch) -> None:
    known = KnownPartitions(staged={_A0: staged}).including([_A0, _A1], {})
    texts = known.texts([_A0, _A1])
    found = KnownPartitions.of(
        {
            _A0: CommittedOffset(7, texts[_A0]),
            _A1: CommittedOffset(7 << 32, texts[_A1]),
        }
    )
    assert found == KnownPartitions(known.partitions, staged={_A0: staged})
    more = found.including([TopicPartition("b", 0)], {"b": uuid.uuid4()})
    assert more.staged == found.staged
    assert more.texts([TopicPartition("b", 0)]) == {TopicPartition("b", 0): more.metadata("b")}


def _with(
    topic: str,
    staged: StagedBatch | None,
    source: SourcePartition | None,
    suspect: SuspectRange,
    known: KnownPartitions | None = None,
) -> str:
    partition = TopicPartition(topic, 0)
    full = replace(
        known or KnownPartitions(),
        owner=_LONGEST_OWNER if known else None,
        suspects={partition: suspect},
        staged={} if staged is None else {partition: staged},
        sources={} if source is None else {partition: source},
    )
    return full.texts([partition])[partition]


@pytest.mark.parametrize("topic", ["out", None, "t" * 249])
def test_all_offsets_of_a_topic_name_their_owner(topic: str | None) -> None:
    owner = Owner.of(str(uuid.UUID(int=5 << 96)), topic)
    known = KnownPartitions(owner=owner).including([_A0, _A1], {})
    texts = known.texts([_A0, _A1])
    found = KnownPartitions.of({p: CommittedOffset(1, text) for p, text in texts.items()})
    assert found.owners == {"a": frozenset([owner])}
    # Reading owners does not make them the owners of the offsets that are committed next.
    assert found.owner is None
    assert len(texts[_A0]) < 150


def test_long_topic_names_are_distinguished_by_their_ends() -> None:
    one, other = (Owner.of("q", "t" * 240 + end) for end in "ab")
    assert one != other


@pytest.mark.parametrize("text", ["", "mine", "[]", "{}", "null", "7"])
def test_offsets_committed_by_others_say_nothing(text: str) -> None:
    known = KnownPartitions.of({_A0: CommittedOffset(9, text)})
    assert known == KnownPartitions(set_by_others=frozenset({_A0}))
    assert (known.tells_nothing_of("a"), known.tells_nothing_of("b")) == (True, False)


_SOURCE = ["9dZ", "orders", "7" * 32, 3]
_FORGED: list[dict[str, Any]] = [
    {"suspect": [float("inf"), 1]},
    {"suspect": [float("nan"), 1]},
    {"suspect": [1.0, 2]},
    {"suspect": [True, 2]},
    {"suspect": [-1, 2]},
    {"suspect": [1, 1 << 63]},
    {"suspect": [1]},
    {"suspect": "12"},
    {"partitions": "0-20000000"},
    {"partitions": ",".join(["0-99999"] * 20)},
    {"partitions": "3-1"},
    {"partitions": "\u00b2"},
    {"partitions": ["0"]},
    {"among": 7},
    {"among": "x"},
    {"among": "\u00b2AAA"},
    {"topics": ["ab12cd34"]},
    {"topics": "\x1b[1m"},
    {"more": "x" * 4_096},
    {"staged": 7},
    {"staged": []},
    {"staged": {}},
    {"staged": {"query": "q", "batch": 7}},
    {"staged": {**_STAGED._asdict(), "batch": None}},
    *({"staged": {**_STAGED._asdict(), "directory": name}} for name in ("", 7, "../../payroll")),
    *(
        {"staged": {**_STAGED._asdict(), "directory": f"{n}-ab12cd34"}}
        for n in ("8", "07", "\u0667")
    ),
    {"staged": {**_STAGED._asdict(), "directory": "7-ab12cd34/../../../payroll"}},
    {"staged": {**_STAGED._asdict(), "directory": "7-ab12cd34\n"}},
    {"staged": {**_STAGED._asdict(), "rows": 1e300}},
    {"staged": {**_STAGED._asdict(), "files": "32"}},
    {"staged": {**_STAGED._asdict(), "batch": 1 << 31}},
    {"staged": {**_STAGED._asdict(), "query": "\x1b[1m"}},
    {"staged": {**_STAGED._asdict(), "fingerprint": None}},
    {"source": [*_SOURCE[:3], 3.5]},
    {"source": [*_SOURCE[:3], 1 << 31]},
    {"source": ["9dZ", "../orders", *_SOURCE[2:]]},
    {"source": ["9dZ", "t" * 250, *_SOURCE[2:]]},
    {"source": ["\x1b[1m", *_SOURCE[1:]]},
    {"source": [*_SOURCE[:2], "7", 3]},
    {"source": {"a": 1, "b": 2, "c": 3, "d": 4}},
    {"owner": "5f1c"},
    {"owner": ["5f1c"]},
    {"owner": ["\x1b[1m", "out"]},
    {"owner": ["5f1c0a7e-31c2", "out"]},
    {"owner": ["5f1c", "../out"]},
    {"owner": ["5f1c", "t" * 100]},
    {"owner": [None, "out"]},
]


@pytest.mark.parametrize("forged", _FORGED)
def test_what_we_would_not_write_is_another_clients(forged: dict[str, Any]) -> None:
    text = json.dumps({"spark-eos": 2, "partitions": "0", "topics": "", **forged})
    known = KnownPartitions.of({_A0: CommittedOffset(9, text)})
    assert known == KnownPartitions(set_by_others=frozenset({_A0}))


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_what_is_deeply_nested_is_another_clients(opening: str) -> None:
    for text in (opening * 4_000, f'{{"spark-eos":2,"suspect":{opening * 800}'):
        known = KnownPartitions.of({_A0: CommittedOffset(9, text)})
        assert known == KnownPartitions(set_by_others=frozenset({_A0}))


_LARGEST = _STAGED._replace(
    batch=2**31 - 1, directory=f"{2**31 - 1}-ab12cd34", rows=2**62, files=2**31 - 1
)
# Names of topics have at most 249 characters, ids of clusters 22.
_LONGEST_OWNER = Owner.of(str(uuid.uuid4()), "t" * 249)
_LONGEST = SourcePartition("c" * 22, "t" * 249, uuid.uuid4(), 2**31 - 1)


def test_a_group_of_many_topics_stays_below_the_brokers_limit() -> None:
    partitions = [TopicPartition(f"topic-{n}", index) for n in range(2_000) for index in range(3)]
    ids = {topic: uuid.uuid4() for topic, _ in partitions}
    known = KnownPartitions().including(partitions, ids)
    # offset.metadata.max.bytes, unless set.
    for staged, source in ((_LARGEST, None), (None, _LONGEST)):
        assert len(_with("topic-1", staged, source, SuspectRange(2**62, 2**62), known)) < 4_096


@given(st.integers(1, 60), st.integers(0, 300), st.data())
def test_all_topics_are_named_by_many_offsets(
    current: int, older: int, data: st.DataObject
) -> None:
    ids = {f"topic-{n}": uuid.uuid5(uuid.NAMESPACE_URL, str(n)) for n in range(current + older)}
    names = data.draw(st.permutations(sorted(ids)))
    before = KnownPartitions().including([TopicPartition(name, 0) for name in names[:older]], ids)
    known = before.including([TopicPartition(name, 0) for name in names[older:]], ids)
    texts = known.texts([TopicPartition(name, 0) for name in names[older:]])
    mentions = Counter(
        topic
        for partition, text in texts.items()
        for topic in KnownPartitions.of({partition: CommittedOffset(1, text)}).topics
    )
    # 200 ids fit into a text.
    everywhere = min(16, current * min(200, len(ids)) // len(ids))
    assert all(mentions[topic] >= everywhere for topic in known.topics)


def test_texts_stay_short_where_there_are_many_topics() -> None:
    partitions = [TopicPartition(f"topic-{n}", index) for n in range(2_000) for index in range(3)]
    ids = {topic: uuid.uuid4() for topic, _ in partitions}
    texts = KnownPartitions().including(partitions, ids).texts(partitions)
    assert max(map(len, texts.values())) < 200


@pytest.mark.parametrize(
    ("indexes", "exactly"),
    [
        (range(0, 1_200, 3), True),
        (range(0, 9_000, 2), True),
        (sorted(random.Random(1).sample(range(8_000), 500)), True),
        (range(90_000, 99_000, 2), True),
        # Rather too many are taken for known than too few.
        (range(0, 20_000, 2), False),
    ],
)
def test_a_topic_with_many_known_partitions_stays_below_it_too(
    indexes: Sequence[int], *, exactly: bool
) -> None:
    known = KnownPartitions().including([TopicPartition("a", index) for index in indexes], {})
    for staged, source in ((_LARGEST, None), (None, _LONGEST)):
        text = _with("a", staged, source, SuspectRange(2**62, 2**62), known)
        assert len(text) < 4_096
        found = KnownPartitions.of({TopicPartition("a", indexes[0]): CommittedOffset(1, text)})
        assert found.partitions >= known.partitions
        assert (found.partitions == known.partitions) == exactly


def test_requests_hold_everything_once() -> None:
    ends = {TopicPartition("a", index): index for index in range(10_000)}
    parts = list(offsets.in_requests(ends, {}))
    assert len(parts) > 2
    assert {partition: offset for part in parts for partition, offset in part.items()} == ends
    assert sum(map(len, parts)) == len(ends)


@pytest.mark.parametrize("version", [1, FORMAT + 1, "position", "2", True, None])
def test_what_another_version_has_written_is_refused(version: object) -> None:
    """An operator's offset has no text; another client's text is not ours and says nothing."""
    text = json.dumps({"spark-eos": version, "partitions": "0", "topics": ""})
    with pytest.raises(FormatVersionError, match=f"reads only format {FORMAT}"):
        KnownPartitions.of({_A0: CommittedOffset(9, text)})
