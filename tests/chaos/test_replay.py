"""Replays of a real query's trace, of modified traces, and of walks of the model.

The query's first run writes partitions 0 and 2, and is killed in a transaction of partition 1. The
second run is killed in its second transaction of partition 1; the third run continues.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from chaos.model import Breakage
from chaos.model_walks import Walk
from chaos.replay import Replayed, replay
from chaos.traces import Event, load, resolved
from spark_eos._kafka.topic_partition import TopicPartition

_RECORDED: Final = Path(__file__).parent / "recorded"
_TIMEOUT_MS: Final = 120_000


class _Altered:
    """The recorded events, to be modified."""

    def __init__(self) -> None:
        self.events = load(_RECORDED / "query-kill.gz")

    def requests(self, kind: str, **said: Any) -> list[Event]:
        """The requests of a kind that have contents, in order."""
        return [
            event
            for event in self.events
            if event.get("kind") == kind and said.items() <= event.items()
        ]

    def answer(self, request: Event) -> Event:
        """A request's answer."""
        number = self.events.index(request)
        return next(event for event in self.events if event.get("answer") == number)

    def never(self, *requests: Event) -> None:
        """Removes these requests from the trace."""
        for request in requests:
            about = [request, self.answer(request)]
            for event in about:
                event.clear()
                event.update(at=request.get("at", 0.0), kind="Heartbeat")

    def replayed(self, *, several_nodes: bool = False) -> Replayed:
        """The model's result."""
        return replay(self.events, _TIMEOUT_MS, several_nodes=several_nodes)


def test_records_are_identified_by_source_and_topics_by_name() -> None:
    source = TopicPartition("in", 2)
    batches = {(TopicPartition("out", 0), 5): {source: (1, 9)}}
    batches[TopicPartition("out", 1), 0] = {source: (0, 4), TopicPartition("in", 0): (3, 3)}
    written = [("out", 0, 5), ("out", 1, 0), ("dlq", 0, 0)]
    events: list[Event] = [
        {"at": 1.0, "answer": 0, "code": 0, "batches": written},
        {"at": 2.0, "kind": "OffsetCommit", "offsets": [("f00d", 1, 3), ("in", 2, 4)]},
        {"at": 3.0, "answer": 1, "codes": [("f00d", 0, 22), ("f00d", 1, 0)]},
    ]
    pairs = {TopicPartition("in", 0): TopicPartition("there", 7)}
    assert resolved(events, {"f00d": "in"}, pairs, batches) == [
        {"at": 1.0, "answer": 0, "code": 0, "rows": [("in", 2, 0, 9), ("in", 0, 3, 3)]},
        {"at": 2.0, "kind": "OffsetCommit", "offsets": [("in", 1, 3), ("in", 2, 4)]},
        {"at": 3.0, "answer": 1, "codes": [("there", 7, 22), ("in", 1, 0)]},
    ]


def test_each_step_of_a_run_is_one_of_the_model() -> None:
    found = _Altered().replayed()
    assert found.problems == []
    assert found.partitions == 3
    # Fewer would mean that requests are ignored.
    assert found.steps == 137


def test_a_growing_transaction_may_be_answered_not_coordinator() -> None:
    seen = _Altered()
    added = [one for one in seen.requests("AddPartitionsToTxn") if one["producer"] == [2, 0]]
    # The second transaction's request after its first, when the transaction is known to have begun.
    for request in added[2:]:
        seen.answer(request)["code"] = 16
    assert len(added) == 5
    assert seen.replayed().problems == []


def test_a_repeated_request_may_be_refused_although_the_first_was_accepted() -> None:
    seen = _Altered()
    asked = seen.requests("TxnOffsetCommit")[-1]
    answer = {**seen.answer(asked), "at": seen.events[-1]["at"], "answer": len(seen.events)}
    answer["codes"] = [[*where, 47] for *where, _ in answer["codes"]]
    seen.events += [{**asked, "at": answer["at"]}, answer]
    assert seen.replayed().problems == []


def _not_fenced(seen: _Altered) -> None:
    """The second run continues as the first run's member."""
    joined = seen.requests("ConsumerGroupHeartbeat", instance="spark-eos-0", epoch=0)
    first, second = joined[0]["member"], joined[1]["member"]
    seen.never(joined[1])
    for event in seen.events:
        if event.get("member") == second:
            event["member"] = first


def _left_open(seen: _Altered) -> None:
    process = seen.requests("ConsumerGroupHeartbeat", instance="spark-eos-0")[1]["process"]
    ended = seen.requests("InitProducerId", process=process)
    seen.never(*[one for one in ended if not one["id"].endswith("/driver")])


def _read_before(seen: _Altered) -> None:
    """The second run knows an older offset than the group's."""
    fetch = seen.requests("OffsetFetch")[2]
    _set(seen.answer(fetch), "offsets", 0, 10_000)


def _written_from_before(seen: _Altered) -> None:
    """The third run writes records that the second one has committed."""
    offsets = seen.requests("TxnOffsetCommit")[-1]
    produced = [one for one in seen.requests("Produce") if one["producer"] == offsets["producer"]]
    rows = seen.answer(produced[0])["rows"]
    rows[0] = [*rows[0][:2], 0, rows[0][3]]


def _not_flushed(seen: _Altered) -> None:
    """Offsets are sent while records are not acknowledged."""
    offsets = seen.requests("TxnOffsetCommit")[0]
    number = seen.events.index(offsets)
    last = max(n for n, event in enumerate(seen.events[:number]) if "rows" in event)
    seen.events.insert(number + 1, seen.events.pop(last))
    for event in seen.events:
        if event.get("answer") in range(last, number + 1):
            event["answer"] -= 1


def _refusal_ignored(seen: _Altered) -> None:
    answer = seen.answer(seen.requests("TxnOffsetCommit")[0])
    _set(answer, "codes", 2, 113)


def _kept(seen: _Altered) -> None:
    """A producer continues although the answer to a transaction's end was lost."""
    answer = seen.answer(seen.requests("EndTxn")[0])
    answer["lost"] = answer.pop("answer")


def _end_first(seen: _Altered) -> None:
    """The second run commits an end offset before it writes the records below it."""
    commit = seen.requests("OffsetCommit")[3]
    _set(commit, "offsets", 1, 10_000)


def _late(seen: _Altered) -> None:
    """The broker accepts the second run's transaction as the first run's member."""
    first = seen.requests("ConsumerGroupHeartbeat", instance="spark-eos-0", epoch=0)[0]
    offsets = [one for one in seen.requests("TxnOffsetCommit") if one["producer"] == [5, 0]]
    offsets[0]["member"] = first["member"]


def _set(event: Event, key: str, partition: int, value: int) -> None:
    for one in event[key]:
        if one[1] == partition:
            one[2] = value


@pytest.mark.parametrize(
    ("alter", "step"),
    [
        (_not_fenced, "reads the offset"),
        (_left_open, "ends open transactions"),
        (_read_before, "reads the offset"),
        (_written_from_before, "starts a task in a new worker"),
        (_not_flushed, "TxnOffsetCommit"),
        (_refusal_ignored, "EndTxn"),
        (_kept, "starts a task in the worker"),
        (_end_first, "commits the end"),
        (_late, "TxnOffsetCommit"),
    ],
)
def test_a_step_that_the_model_does_not_allow_is_named(
    alter: Callable[[_Altered], None], step: str
) -> None:
    seen = _Altered()
    alter(seen)
    assert set(seen.replayed().disallowed.values()) == {step}


def test_what_is_open_may_be_known_to_a_node_that_is_away() -> None:
    """The transaction has no offsets, and its member is fenced."""
    seen = _Altered()
    _left_open(seen)
    assert seen.replayed(several_nodes=True).problems == []
    _read_before(seen)
    assert "reads the offset" in seen.replayed(several_nodes=True).disallowed.values()


def test_whatever_the_model_does_is_allowed() -> None:
    for seed in range(150):
        assert replay(Walk(seed).events, _TIMEOUT_MS).problems == [], seed


@pytest.mark.parametrize(
    "breakage",
    [
        Breakage.NO_TAKEOVER,
        Breakage.ANSWER_IGNORED,
        Breakage.NOT_FLUSHED,
        Breakage.READ_BEFORE_FENCING,
        Breakage.RETRY_WRITES,
    ],
    ids=lambda one: one.value,
)
def test_a_walk_that_loses_or_doubles_a_record_is_rejected(
    breakage: Breakage,
) -> None:
    walks = [walk for seed in range(200) if (walk := Walk(seed, breakage)).wrong]
    assert walks
    assert all(replay(walk.events, _TIMEOUT_MS).problems for walk in walks)
