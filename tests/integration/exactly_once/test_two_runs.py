"""Two concurrent runs of a query: at most one of them continues."""

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConsumerOffset

from spark_eos.errors import FencedByNewerRunError, OffsetsLostError, WriteError
from support.flow import Flow
from support.mirroring import mirrored_run
from support.runs import Checkpoint, Runs, running

Start = Callable[..., AbstractContextManager[Runs]]


@pytest.fixture(params=["direct", pytest.param("mirrored", marks=pytest.mark.slow)])
def start(request: pytest.FixtureRequest) -> Start:
    """Starts a run of the query."""
    if request.param == "mirrored":
        return functools.partial(mirrored_run, request.getfixturevalue("mirrored_flow"))
    return functools.partial(running, request.getfixturevalue("flow"))


def test_a_second_run_that_comes_and_goes_within_a_batch(start: Start) -> None:
    with start() as first:
        first.batch(5, 5)

        def overtake() -> None:
            # A heartbeat while the other run is active would end this run.
            first.delay_heartbeats()
            with start(checkpoint=first.checkpoint) as second:
                second.batch(10, 10)

        report = first.batch(10, 10, while_planned=overtake)
    assert (report.attempts, report.rows_written, report.rows_skipped) == (2, 0, 10)
    first.written_once(10, 10)


def test_another_query_that_comes_and_goes_within_a_batch(flow: Flow) -> None:
    """The group's offsets then say what another topic has, not this query's."""
    elsewhere = f"elsewhere-{flow.name}"
    flow.broker.create_topic(elsewhere, flow.partitions)
    with running(flow) as first:
        first.batch(5, 5)
        checkpoint = Checkpoint(flow)
        checkpoint["metadata"] = '{"id": "another"}'

        def overtake() -> None:
            first.delay_heartbeats()
            moved: dict[str, Any] = {"topic": elsewhere, "moved_from": "query"}
            with running(flow, checkpoint=checkpoint, **moved) as second:
                second.batch(10, 10)

        with pytest.raises(FencedByNewerRunError, match=f"another, which writes to '{elsewhere}'"):
            first.batch(10, 10, while_planned=overtake)


def test_a_second_run_that_comes_and_goes_between_two_batches(flow: Flow) -> None:
    with running(flow) as first:
        first.batch(5, 5)
        first.delay_heartbeats()
        with running(flow) as second:
            second.batch(8, 6)
        first.notice_the_group()
        report = first.batch(9, 9)
    assert (report.attempts, report.rows_written, report.rows_skipped) == (1, 4, 4)
    first.written_once(9, 9)


def test_a_second_run_comes_and_goes_before_a_partition_is_added(flow: Flow) -> None:
    with running(flow) as first:
        first.batch(5, 5)
        first.delay_heartbeats()
        flow.broker.add_partitions(flow.source, 3)
        flow.partitions = 3
        with running(flow) as second:
            second.batch(8, 6, 2)
        # No heartbeat has told it.
        report = first.batch(9, 9, 4)
    assert (report.rows_written, report.rows_skipped) == (6, 6)
    first.written_once(9, 9, 4)


@pytest.mark.parametrize("text", ["", "another client's"])
def test_offsets_moved_by_others_while_the_driver_is_cut_off(flow: Flow, text: str) -> None:
    with running(flow) as first:
        first.batch(5, 5)
        first.delay_heartbeats()
        with running(flow) as second:
            second.batch(5, 5)
        moved = ConsumerOffset(flow.source, 0, 8, metadata=text)
        with closing(Consumer({**flow.kafka, "group.id": flow.group_id})) as another:
            another.commit(offsets=[moved], asynchronous=False)
        first.notice_the_group()
        with pytest.raises(OffsetsLostError, match="a consumer other than spark-eos"):
            first.batch(9, 9)


def test_ranges_marked_by_a_second_run_in_a_batch_stay_marked(flow: Flow) -> None:
    def misplaced(partition: int, offsets: range) -> list[int]:
        return [*offsets[3:], *offsets[:3]] if partition == 1 else [*offsets]

    with running(flow) as first:
        first.batch(5, 5)

        def overtake() -> None:
            first.delay_heartbeats()
            with (
                running(flow, checkpoint=first.checkpoint, max_transaction_records=1) as second,
                pytest.raises(WriteError, match="noted in the group's offsets"),
            ):
                second.batch(10, 10, rows=misplaced)

        with pytest.raises(OffsetsLostError, match=f"{flow.source}-1 may be missing"):
            first.batch(10, 10, while_planned=overtake)
    with (
        running(flow, checkpoint=first.checkpoint) as third,
        pytest.raises(OffsetsLostError, match=f"{flow.source}-1 may be missing"),
    ):
        third.batch(10, 10)


def test_a_second_run_on_the_same_checkpoint_fences_the_first(start: Start) -> None:
    with start() as first, contextlib.ExitStack() as stack:
        first.batch(5, 5)

        def overtake() -> None:
            second = stack.enter_context(start(checkpoint=first.checkpoint))
            second.batch(12, 12)

        with pytest.raises(FencedByNewerRunError):
            first.batch(12, 12, while_planned=overtake)
        first.written_once(12, 12)
