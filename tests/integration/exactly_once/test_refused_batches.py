"""What becomes of a batch after the group's offsets, or the topics they are of, were changed.

Each row of the table is a delivery, a moment, a fault, and the verdict: written, or refused with an
error that names these.
"""

from collections.abc import Callable

import pytest

from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.progress_topic import first_position
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import (
    ConfigurationError,
    FormatVersionError,
    OffsetGapError,
    OffsetsLostError,
    WriteError,
)
from support.runs import BETWEEN, IN_JOB, STOPPED, WITHOUT_CHECKPOINT, Query

Fault = Callable[[Query], None]


def _nothing(_: Query) -> None:
    pass


def _loses(partition: int) -> Fault:
    def loses(query: Query) -> None:
        query.loses(partition)

    return loses


def _sets(offsets: dict[int, int], text: str = "") -> Fault:
    def sets(query: Query) -> None:
        query.sets(offsets, text)

    sets.__name__ = f"sets {offsets}"
    return sets


def _text(query: Query) -> str:
    return query.flow.group_commits()[TopicPartition(query.held_by, 0)].metadata


def _moves_back(query: Query) -> None:
    query.sets({0: 4}, _text(query))


def _says_another_cluster(query: Query) -> None:
    held = TopicPartition(query.held_by, 0)
    known = KnownPartitions.of(query.flow.group_commits())
    query.sets({0: 10}, _text(query).replace(known.sources[held].cluster, "elsewhere"))


def _recreates_the_source(query: Query) -> None:
    query.flow.recreate(query.flow.source)


def _recreates_the_progress_topic(query: Query) -> None:
    query.flow.recreate(query.held_by, 3)


_UP_TO = "{source}-0 up to 10"
_RECREATED = "'{source}' was deleted and recreated"


@pytest.mark.parametrize(
    ("delivery", "moment", "fault", "error", "names"),
    [
        # The first batch of another checkpoint: the partition is not new.
        ("direct", WITHOUT_CHECKPOINT, _loses(1), OffsetsLostError, ["{source}-1"]),
        ("direct", STOPPED, Query.loses_all, None, ["{source}-0", "{source}-1"]),
        *(
            ("direct", moment, fault, OffsetsLostError, [_UP_TO, *now])
            for moment in (BETWEEN, IN_JOB)
            for fault, now in (
                (_loses(0), ["now has no offset"]),
                (_sets({0: 3}), ["now has 3:"]),
                (_sets({0: 13}), ["now has 13:", "offsets 10 to 12"]),
            )
        ),
        ("direct", STOPPED, _sets({0: 10}, '{"spark-eos":99}'), FormatVersionError, [" 10:"]),
        ("direct", IN_JOB, _recreates_the_source, WriteError, [_RECREATED]),
        ("mirrored", BETWEEN, _recreates_the_source, OffsetsLostError, [_RECREATED]),
        # The offsets' texts know the topic's id, too.
        (
            "mirrored",
            WITHOUT_CHECKPOINT,
            _recreates_the_source,
            OffsetsLostError,
            [_RECREATED],
        ),
        ("mirrored", WITHOUT_CHECKPOINT, _nothing, None, []),
        ("mirrored", STOPPED, _loses(1), None, ["{source}-1"]),
        ("mirrored", WITHOUT_CHECKPOINT, _loses(1), OffsetsLostError, ["{source}-1"]),
        ("mirrored", STOPPED, _sets({0: 10, 1: 20}), None, []),
        (
            "mirrored",
            WITHOUT_CHECKPOINT,
            _sets({0: 10, 1: 20}),
            OffsetsLostError,
            ["2 progress partitions"],
        ),
        ("mirrored", STOPPED, _recreates_the_progress_topic, OffsetsLostError, ["'{progress}'"]),
        (
            "mirrored",
            STOPPED,
            _moves_back,
            OffsetGapError,
            ["{source}-0", "offsets 4 to 9", "--group-id {group_id} --set {source}:0=10"],
        ),
        *(
            ("mirrored", moment, _says_another_cluster, ConfigurationError, words)
            for moment in (STOPPED, WITHOUT_CHECKPOINT)
            for words in [["'elsewhere'", "source_kafka"]]
        ),
        ("staged", STOPPED, _sets({0: 5}), OffsetsLostError, ["staged commit of group"]),
        ("staged", STOPPED, _sets({1: first_position(1)}), OffsetsLostError, ["{progress}-1"]),
        ("staged", STOPPED, _loses(1), OffsetsLostError, ["{progress}-1", "batch 2"]),
        ("staged", STOPPED, _recreates_the_source, OffsetsLostError, [_RECREATED]),
        ("staged", STOPPED, _recreates_the_progress_topic, OffsetsLostError, ["recreated"]),
    ],
)
def test_the_next_batch(
    query_of: Callable[[str], Query],
    delivery: str,
    moment: str,
    fault: Fault,
    error: type[Exception] | None,
    names: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = query_of(delivery)
    flow = query.flow
    found = [
        name.format(source=flow.source, progress=query.held_by, group_id=flow.group_id)
        for name in names
    ]
    if fault is _recreates_the_source and delivery == "staged":
        # Also if records may be lost.
        query.options = {"fail_on_data_loss": False}
    query.disturbed(moment, fault, error, found)
    if error is None:
        for name in found:
            assert name in caplog.text


def test_another_clients_text_is_cleared_by_setting_the_offset(direct: Query) -> None:
    direct.writes(5, 5)
    direct.sets({0: 5}, '{"spark-eos":99}')
    direct.refuses(FormatVersionError, [f"{direct.flow.source}-0"], 9, 9)
    direct.sets({0: 5})
    with direct.run() as runs:
        runs.batch(9, 9)
        runs.written_once(9, 9)
