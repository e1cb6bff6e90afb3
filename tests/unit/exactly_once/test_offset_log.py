"""Spark's offset log: where a batch starts and ends."""

import uuid

import pytest

from spark_eos import errors
from spark_eos._checkpoint.marker import Marker
from spark_eos._checkpoint.offset_log import LogEntry, OffsetLog, parse_positions
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.plan import BatchRange
from support.checkpoint_texts import CheckpointTexts

_A0, _A1, _B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_batch_0_starts_where_its_sources_say() -> None:
    log = OffsetLog(
        CheckpointTexts(
            {
                "sources/0/0": '\x00v1\n{"a":{"0":3,"1":0}}',
                "sources/1/0": '\x00v1\n{"b":{"0":7}}',
                "offsets/0": 'v1\n{"batchWatermarkMs":0}\n{"a":{"0":5,"1":0}}\n{"b":{"0":9}}',
            }
        )
    )
    assert log.batch_range(0) == BatchRange(
        0,
        {_A0: 3, _A1: 0, _B0: 7},
        {_A0: 5, _A1: 0, _B0: 9},
    )


def test_later_batches_start_where_the_one_before_ended() -> None:
    files = CheckpointTexts(
        {
            "offsets/4": 'v1\n{}\n-\n{"a":{"0":5}}',
            "offsets/5": 'v2\n{}\n1:{"b":{"0":1}}\n0:{"a":{"0":8,"1":2}}',
        }
    )
    expected = BatchRange(
        5,
        {_A0: 5},
        {_A0: 8, _A1: 2, _B0: 1},
    )
    log = OffsetLog(files)
    assert log.batch_range(5) == expected
    # The same batch again, as after a failure; and the next needs no second look at this one.
    assert log.batch_range(5) == expected
    files["offsets/6"] = 'v1\n{}\n{"a":{"0":9,"1":2}}'
    del files["offsets/4"]
    del files["offsets/5"]
    assert log.batch_range(6).starts == expected.ends


def test_when_a_batch_began_may_not_be_logged() -> None:
    texts = ['v1\n{"batchTimestampMs":7}\n{"a":{"0":5}}', 'v1\n{}\n{"a":{"0":5}}', "v1"]
    assert [LogEntry.of(text).began_ms for text in texts] == [7, 0, 0]


def test_a_batch_without_its_entry_has_no_fingerprint() -> None:
    """A copy that is staged already would seem to be of another batch."""
    files = CheckpointTexts({"offsets/4": 'v1\n{"batchTimestampMs":7}\n{"a":{"0":5}}'})
    with pytest.raises(errors.CheckpointError, match="offsets/5 is missing"):
        OffsetLog(files).fingerprint(5)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "offsets/3 is missing"),
        ({"offsets/3": "v1\n{}\n", "offsets/4": "v9\n{}\n"}, "unknown format 'v9'"),
        ({"offsets/3": "v1\n{}\n7"}, "not Kafka's"),
        ({"offsets/3": 'v1\n{}\n{"a":{"0":[]}}'}, "'/checkpoints/a' holds .* not Kafka's"),
        ({"offsets/3": 'v1\n{}\n{"a":{"0":1}}\n{"a":{"0":1}}'}, "two sources .* read a-0"),
    ],
)
def test_offset_logs_that_can_not_be_used(files: dict[str, str], words: str) -> None:
    with pytest.raises(errors.CheckpointError, match=words):
        OffsetLog(CheckpointTexts(files)).batch_range(4)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no streaming checkpoint at .*'/checkpoints/a', .* empty or does not exist"),
        ({"commits/0": "v1"}, "'/checkpoints/a' has commits but no metadata: .*part of"),
        ({"metadata": ""}, "metadata of checkpoint_location '/checkpoints/a' can't be read: ''"),
        ({"metadata": "[1]"}, "metadata of checkpoint_location '/checkpoints/a' can't be read"),
    ],
)
def test_a_location_that_is_no_checkpoint(files: dict[str, str], words: str) -> None:
    with pytest.raises(errors.CheckpointError, match=words):
        OffsetLog(CheckpointTexts(files)).query_id()


def test_every_refusal_names_the_location() -> None:
    log = OffsetLog(CheckpointTexts({"metadata": '{"id":"a"}', "sources/0/9": "v1"}))
    for look in (log.finished, log.initial, lambda: log.fingerprint(3)):
        with pytest.raises(errors.CheckpointError, match="'/checkpoints/a'"):
            look()


def test_a_source_without_offsets_has_no_positions() -> None:
    assert parse_positions(["-", ""], "here") == {}


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (('{"logOffset":3}', '{"a":{"0":4}}', "-"), ("0", "1", "2")),
        (('files:{"logOffset":3}', 'orders:{"a":{"0":4}}', "late:-"), ("files", "orders", "late")),
    ],
)
def test_the_ranges_of_a_batch_in_its_sources(
    lines: tuple[str, ...], names: tuple[str, ...]
) -> None:
    """For any query: some sources are not Kafka, and a topic may be read twice."""
    version = "v1" if names[0] == "0" else "v2"
    files = CheckpointTexts(
        {
            f"sources/{names[1]}/0": '\x00v1\n{"a":{"0":1}}',
            f"sources/{names[2]}/0": '\x00v1\n{"a":{"0":7}}',
            "offsets/0": "\n".join([version, "{}", *lines]),
            "offsets/1": "\n".join([version, "{}", lines[0], lines[1].replace("4", "9"), lines[2]]),
        }
    )
    log = OffsetLog(files)
    assert log.source_ranges(0) == [BatchRange(0, {_A0: 1}, {_A0: 4})]
    assert log.source_ranges(1) == [BatchRange(1, {_A0: 4}, {_A0: 9})]
    assert log.source_ranges(1) == [BatchRange(1, {_A0: 4}, {_A0: 9})]
    with pytest.raises(errors.CheckpointError, match="offsets/2 is missing"):
        log.source_ranges(2)


def test_offsets_of_other_sources_name_no_partitions() -> None:
    text = 'v1\n{}\n{"a":{"0":4}}\n{"shards":{"0":17}}'
    log = OffsetLog(CheckpointTexts({"offsets/0": text}))
    assert log.partitions() == {("a", 0), ("shards", 0)}
    assert log.partitions({"1"}) == {("a", 0)}


def test_the_note_keeps_the_partitions_that_a_topic_had() -> None:
    files = CheckpointTexts()
    one, other = uuid.UUID(int=1), uuid.UUID(int=2)
    log = OffsetLog(files)
    log.markers.write(Marker("group", {"a": one, "b": one}, partitions={"a": frozenset({0, 1})}))
    # Only partition 2 is assigned now, and topic b is read as well.
    log.markers.write(
        Marker("group", {"a": one}, partitions={"a": frozenset({2}), "b": frozenset({0})})
    )
    found = OffsetLog(files).markers.read()
    assert found.partitions == {"a": {0, 1, 2}, "b": {0}}
    assert found.names(_A1, one)
    assert not found.names(TopicPartition("a", 3), one)
    # Created anew, the topic has none of them.
    log.markers.write(Marker("group", {"a": other}, partitions={"a": frozenset({0})}))
    assert OffsetLog(files).markers.read().partitions == {"a": {0}, "b": {0}}
