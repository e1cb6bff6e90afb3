"""Rows that come out of order, or to two tasks, after later rows are committed."""

import re
from typing import Any

import pytest
from kafka.protocol.consumer import OffsetCommitRequest

from spark_eos._client.error_codes import Code
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import OffsetsLostError, WriteError
from support import groups
from support.flow import Flow
from support.proxied_worker import uncommitted
from support.proxy import KafkaProxy
from support.runs import Checkpoint, running
from support.versions import STALE_EPOCH

# A transaction for each row: the fifth to the last are committed when the first four come.
EACH: dict[str, Any] = {"max_transaction_records": 1}


def _late_firsts(_partition: int, offsets: range) -> list[int]:
    return [*offsets[4:], *offsets[:4]]


def _late_firsts_of_0(partition: int, offsets: range) -> list[int]:
    return _late_firsts(partition, offsets) if partition == 0 else [*offsets]


def _named(flow: Flow, error: BaseException) -> dict[int, int]:
    """The source partitions that an error names, each with the last offset in doubt."""
    text = str(error)
    found = re.findall(rf"{flow.source}-(\d+) offsets 0 to (\d+)", text)
    found += [(p, n) for n, p in re.findall(rf"offsets 0 to (\d+) of {flow.source}-(\d+)", text)]
    return {int(partition): int(last) for partition, last in found}


def _set(flow: Flow, partition: int, offset: int) -> None:
    """Sets a partition's offset, as an operator does who knows what is written."""
    at = {TopicPartition(flow.source, partition): offset}
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, at)


def _fails(
    flow: Flow, checkpoint: Checkpoint, *ends: int, names: dict[int, int], **batch: Any
) -> str:
    """Checks that a batch fails and names just these partitions' offsets; returns the reason."""
    options = batch.pop("options", EACH)
    before = batch.pop("before", None)
    with running(flow, checkpoint=checkpoint, **options) as runs:
        if before:
            runs.batch(*before)
        with pytest.raises(WriteError) as failure:
            runs.batch(*ends, **batch)
    assert _named(flow, failure.value) == names
    return str(failure.value)


def _refused_from_now_on(flow: Flow, checkpoint: Checkpoint, names: dict[int, int]) -> None:
    """Checks that neither this checkpoint nor an empty one skips rows that may be missing.

    The error names one of the partitions at least.
    """
    written = flow.values()
    for left in (checkpoint, Checkpoint(flow)):
        with running(flow, checkpoint=left) as runs, pytest.raises(OffsetsLostError) as refusal:
            runs.batch(20, 20)
        found = _named(flow, refusal.value)
        assert found
        assert found.items() <= names.items()
    assert flow.values() == written


# One task holds both partitions, and rows of the second come out of order once it has stopped.
_BOTH = [(p, range(at, at + 1)) for at in (2, 3, 4, 0, 1) for p in (0, 1)]


@pytest.mark.parametrize(
    ("ends", "names", "batch"),
    [
        pytest.param((10, 10), {0: 8}, {"rows": _late_firsts_of_0}, id="out of order"),
        pytest.param((5, 5), {0: 4, 1: 3}, {"tasks": [_BOTH]}, id="both partitions"),
        pytest.param(
            (6, 1),
            {1: 0},
            {"before": (5,), "tasks": [[(1, range(1)), (0, range(5, 6)), (1, range(1))]]},
            id="the first record of a new partition",
        ),
        pytest.param(
            (10, 10),
            {0: 9},
            {"options": {}, "tasks": [[(0, range(5, 10))], [(0, range(5)), (1, range(10))]]},
            id="two tasks",
        ),
    ],
)
def test_misplaced_rows_are_skipped_by_no_run(
    flow: Flow, ends: tuple[int, ...], names: dict[int, int], batch: dict[str, Any]
) -> None:
    checkpoint = Checkpoint(flow)
    _fails(flow, checkpoint, *ends, names=names, **batch)
    _refused_from_now_on(flow, checkpoint, names)
    # An operator sets one of them after the other; what is there is written again.
    for partition in sorted(names):
        _set(flow, partition, 0)
        names = {p: last for p, last in names.items() if p != partition}
        if names:
            _refused_from_now_on(flow, checkpoint, names)
    with running(flow, checkpoint=checkpoint) as runs:
        runs.batch(*ends)
    assert {f"{p}/{n}" for p, end in enumerate(ends) for n in range(end)} == set(flow.values())


def test_out_of_order_rows_in_a_replay_count_from_batch_start(flow: Flow) -> None:
    checkpoint = Checkpoint(flow)
    with (
        running(flow, checkpoint=checkpoint, **EACH) as runs,
        pytest.raises(WriteError),
    ):
        runs.batch(10, 10, rows=lambda p, o: [*o[4:]] if p == 0 else [*o, 0])
    # Nobody has seen that 0 to 3 of partition 0 are missing; in this attempt nothing is committed.
    _set(flow, 1, 10)
    replay: dict[str, Any] = {"options": {}, "rows": _late_firsts_of_0}
    _fails(flow, checkpoint, 10, 10, names={0: 9}, **replay)
    _refused_from_now_on(flow, checkpoint, {0: 9})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "times"), [(Code.TOPIC_AUTHORIZATION_FAILED, None), (STALE_EPOCH, 1)]
)
def test_a_mark_that_is_refused_is_made_again(
    proxied_flow: Flow, proxy: KafkaProxy, code: int, times: int | None
) -> None:
    """By the same run, if the group has changed; by the next, if an ACL was missing until then."""
    flow, checkpoint = proxied_flow, Checkpoint(proxied_flow)

    def refuse() -> None:
        proxy.on(OffsetCommitRequest, uncommitted(code), times=times)

    batch: dict[str, Any] = {"rows": _late_firsts, "while_planned": refuse}
    reason = _fails(flow, checkpoint, 10, names={0: 8} if times else {}, **batch)
    proxy.reset()
    written = flow.values()
    if times is None:
        assert "29 TOPIC_AUTHORIZATION_FAILED" in reason
        assert f"--topic {flow.source}:0 --to-offset N" in reason
        assert "could not be noted in the group's offsets" in reason
        # The batch is repeated, and this time its note is accepted.
        reason = _fails(flow, checkpoint, 10, names={0: 8}, options={}, rows=_late_firsts)
    assert "This is noted in the group's offsets" in reason
    _refused_from_now_on(flow, checkpoint, {0: 8})
    assert flow.values() == written


def test_rows_out_of_order_before_any_commit_leave_no_mark(flow: Flow) -> None:
    checkpoint = Checkpoint(flow)
    _fails(flow, checkpoint, 10, 10, names={}, options={}, rows=_late_firsts)
    with running(flow, checkpoint=checkpoint) as runs:
        runs.batch(10, 10)
        runs.written_once(10, 10)


@pytest.mark.slow
def test_a_marked_partition_that_a_running_query_begins_to_read(flow: Flow) -> None:
    tasks = [[(1, range(5, 10))], [(1, range(5)), (0, range(10))]]
    _fails(flow, Checkpoint(flow), 10, 10, names={1: 9}, options={}, tasks=tasks)
    written = flow.values()
    # As with a pattern that the topic matches from some moment on.
    with running(flow) as runs:
        runs.batch(10)
        written += [f"0/{offset}" for offset in range(10) if f"0/{offset}" not in written]
        with pytest.raises(OffsetsLostError) as refusal:
            runs.batch(12, 12)
    assert _named(flow, refusal.value) == {1: 9}
    assert sorted(flow.values()) == sorted(written)


@pytest.mark.parametrize("offsets", [[0, 10], [12]])
def test_rows_outside_of_the_batchs_range(flow: Flow, offsets: list[int]) -> None:
    # Two drivers on one checkpoint, which disagree about the batch.
    with running(flow) as runs, pytest.raises(WriteError, match="the batch goes from 0 to 9"):
        runs.batch(10, 10, rows=lambda _p, _o: offsets)
    assert flow.values() == []
