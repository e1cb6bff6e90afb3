"""Rows that come out of order, or to two tasks, after later rows are committed."""

import functools
import re
from typing import Any

import pytest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse

from spark_eos._client.error_codes import Code
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import OffsetsLostError, WriteError
from support import groups
from support import proxy_faults as faults
from support.flow import Flow
from support.proxy import KafkaProxy
from support.runs import Checkpoint, running
from support.versions import STALE_EPOCH


def _refused_from_now_on(flow: Flow, checkpoint: Checkpoint, words: str) -> None:
    """Checks that neither this checkpoint nor an empty one skips rows that may be missing."""
    for left in (checkpoint, Checkpoint(flow)):
        with running(flow, checkpoint=left) as runs, pytest.raises(OffsetsLostError, match=words):
            runs.batch(20, 20)


def test_out_of_order_rows_after_a_commit_are_skipped_by_no_run(flow: Flow) -> None:
    checkpoint = Checkpoint(flow)
    # A transaction for each row: 4 to 9 are committed when 0 to 3 come.
    with (
        running(flow, checkpoint=checkpoint, max_transaction_records=1) as runs,
        pytest.raises(WriteError) as failure,
    ):
        runs.batch(10, 10, rows=lambda p, o: [*o[4:], *o[:4]] if p == 0 else o)
    assert f"{flow.source}-0 from offset 0 on come after offset 9" in str(failure.value)
    assert f"{flow.source}-0 offsets 0 to 8" in str(failure.value)
    assert f"{flow.source}-1 offsets" not in str(failure.value)
    written = flow.values()
    assert "0/4" in written
    assert "0/0" not in written
    words = re.escape(f"offsets 0 to 8 of {flow.source}-0 may not all be written")
    _refused_from_now_on(flow, checkpoint, words)
    assert flow.values() == written
    # The operator's word: what is missing is written, what is there is written again.
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, {TopicPartition(flow.source, 0): 0})
    with running(flow, checkpoint=checkpoint) as runs:
        runs.batch(10, 10)
    assert {f"0/{n}" for n in range(10)} <= set(flow.values())


def test_each_partition_that_is_out_of_order_is_marked(flow: Flow) -> None:
    checkpoint = Checkpoint(flow)
    # One task holds both, and rows of the second come out of order once it has stopped.
    held = [(p, range(at, at + 1)) for at in (2, 3, 4, 0, 1) for p in (0, 1)]
    with (
        running(flow, checkpoint=checkpoint, max_transaction_records=1) as runs,
        pytest.raises(WriteError) as failure,
    ):
        runs.batch(5, 5, tasks=[held])
    for partition in (0, 1):
        assert f"{flow.source}-{partition} offsets 0 to" in str(failure.value)
    # One of the two is set, and the other is still refused.
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, {TopicPartition(flow.source, 0): 0})
    _refused_from_now_on(flow, checkpoint, f"of {flow.source}-1 may not all be written")


def test_the_first_record_of_a_new_partition_is_marked(flow: Flow) -> None:
    checkpoint = Checkpoint(flow)
    with running(flow, checkpoint=checkpoint, max_transaction_records=1) as runs:
        runs.batch(5)
        with pytest.raises(WriteError, match=f"{flow.source}-1 offsets 0 to 0"):
            runs.batch(6, 1, tasks=[[(1, range(1)), (0, range(5, 6)), (1, range(1))]])
    _refused_from_now_on(flow, checkpoint, f"offsets 0 to 0 of {flow.source}-1 may not all be")


def test_out_of_order_rows_in_a_replay_count_from_batch_start(flow: Flow) -> None:
    checkpoint = Checkpoint(flow)

    def wrong(partition: int, offsets: range) -> list[int]:
        return [*offsets[4:], *offsets[:4]] if partition == 0 else [*offsets]

    with (
        running(flow, checkpoint=checkpoint, max_transaction_records=1) as runs,
        pytest.raises(WriteError),
    ):
        runs.batch(10, 10, rows=lambda p, o: [*o[4:]] if p == 0 else [*o, 0])
    # Nobody has seen that 0 to 3 of partition 0 are missing; in this attempt nothing is committed.
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, {TopicPartition(flow.source, 1): 10})
    with (
        running(flow, checkpoint=checkpoint) as runs,
        pytest.raises(WriteError, match=f"{flow.source}-0 offsets 0 to 9"),
    ):
        runs.batch(10, 10, rows=wrong)
    _refused_from_now_on(flow, checkpoint, "may not all be written")


def test_unmarked_out_of_order_rows_are_reported_and_found_again(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    flow, checkpoint = proxied_flow, Checkpoint(proxied_flow)

    def out_of_order(_partition: int, offsets: range) -> list[int]:
        return [*offsets[4:], *offsets[:4]]

    def refuse() -> None:
        # As when an ACL is taken away.
        proxy.on(OffsetCommitRequest, faults.Answer(_not_authorized), times=None)

    with (
        running(flow, checkpoint=checkpoint, max_transaction_records=1) as runs,
        pytest.raises(WriteError) as failure,
    ):
        runs.batch(10, rows=out_of_order, while_planned=refuse)
    proxy.reset()
    message = (
        f"Rows of {flow.source}-0 from this batch may not be written although later ones are, and "
        "this could not be noted in the group's offsets: "
    )
    assert message in str(failure.value)
    assert "29 TOPIC_AUTHORIZATION_FAILED" in str(failure.value)
    assert f"--topic {flow.source}:0 --to-offset N" in str(failure.value)
    written = flow.values()
    assert "0/4" in written
    assert "0/0" not in written
    # The batch is repeated, and this time its note is accepted.
    with (
        running(flow, checkpoint=checkpoint) as runs,
        pytest.raises(WriteError, match="This is noted in the group's offsets"),
    ):
        runs.batch(10, rows=out_of_order)
    _refused_from_now_on(flow, checkpoint, f"of {flow.source}-0 may not all be written")
    assert flow.values() == written


def test_a_note_that_is_refused_at_first_is_committed_again(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    flow, checkpoint = proxied_flow, Checkpoint(proxied_flow)

    def refuse() -> None:
        # As when the group has changed since.
        stale = functools.partial(_refused, code=STALE_EPOCH)
        proxy.on(OffsetCommitRequest, faults.Answer(stale), times=1)

    with (
        running(flow, checkpoint=checkpoint, max_transaction_records=1) as runs,
        pytest.raises(WriteError, match="This is noted in the group's offsets"),
    ):
        runs.batch(10, rows=lambda _, o: [*o[4:], *o[:4]], while_planned=refuse)
    _refused_from_now_on(flow, checkpoint, f"of {flow.source}-0 may not all be written")


def _not_authorized(request: Any) -> OffsetCommitResponse:
    return _refused(request, Code.TOPIC_AUTHORIZATION_FAILED)


def _refused(request: Any, code: int) -> OffsetCommitResponse:
    topic_class = OffsetCommitResponse.OffsetCommitResponseTopic
    partition_class = topic_class.OffsetCommitResponsePartition
    topics = [
        topic_class(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                partition_class(
                    partition_index=partition.partition_index,
                    error_code=code,
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return OffsetCommitResponse(throttle_time_ms=0, topics=topics)


def test_rows_out_of_order_before_any_commit_leave_no_mark(flow: Flow) -> None:
    checkpoint = Checkpoint(flow)
    with running(flow, checkpoint=checkpoint) as runs, pytest.raises(WriteError) as failure:
        runs.batch(10, 10, rows=lambda _, o: [*o[4:], *o[:4]])
    assert "may not be written although" not in str(failure.value)
    with running(flow, checkpoint=checkpoint) as runs:
        runs.batch(10, 10)
        runs.written_once(10, 10)


def test_rows_in_two_tasks_are_passed_over_by_no_later_run(flow: Flow) -> None:
    checkpoint = Checkpoint(flow)
    with (
        running(flow, checkpoint=checkpoint) as runs,
        pytest.raises(WriteError, match=f"two tasks hold rows of source {flow.source}-0"),
    ):
        runs.batch(10, 10, tasks=[[(0, range(5, 10))], [(0, range(5)), (1, range(10))]])
    _refused_from_now_on(flow, checkpoint, f"offsets 0 to 9 of {flow.source}-0 may not all be")


@pytest.mark.slow
def test_a_marked_partition_that_a_running_query_begins_to_read(flow: Flow) -> None:
    with running(flow) as runs, pytest.raises(WriteError):
        runs.batch(10, 10, tasks=[[(1, range(5, 10))], [(1, range(5)), (0, range(10))]])
    written = flow.values()
    # As with a pattern that the topic matches from some moment on.
    with running(flow) as runs:
        runs.batch(10)
        written += [f"0/{offset}" for offset in range(10) if f"0/{offset}" not in written]
        with pytest.raises(OffsetsLostError, match=f"0 to 9 of {flow.source}-1 may not all be"):
            runs.batch(12, 12)
    assert sorted(flow.values()) == sorted(written)


@pytest.mark.parametrize("offsets", [[0, 10], [12]])
def test_rows_outside_of_the_batchs_range(flow: Flow, offsets: list[int]) -> None:
    # Two drivers on one checkpoint, which disagree about the batch.
    with running(flow) as runs, pytest.raises(WriteError, match="the batch goes from 0 to 9"):
        runs.batch(10, 10, rows=lambda _p, _o: offsets)
    assert flow.values() == []
