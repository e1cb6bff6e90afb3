"""The main cases, end to end, once for each API.

A case uses only topics and `support.apis.Api`.
"""

import datetime
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Message

from spark_eos.verify import Verdict
from support.apis import Api, Queries
from support.flow import Flow
from support.planting import look
from support.queries import until


@pytest.fixture(scope="module")
def api(queries: Queries) -> Api:
    """Starts queries on each API in turn."""
    return Api(queries)


def _settled(flow: Flow, *ends: int) -> None:
    assert flow.committed() == dict(enumerate(ends))
    assert flow.open_transactions() == []
    until(lambda: not flow.members(), lambda: "the members to leave")


def test_records_are_relayed_as_they_are(api: Api, flow: Flow) -> None:
    # Not so long ago that the broker's retention would take the records away.
    now = datetime.datetime.now(datetime.timezone.utc)
    stamp = int((now - datetime.timedelta(hours=1)).timestamp() * 1000)
    headers = [("first", b"1"), ("none", None), ("first", b"2")]
    flow.produce(["a", "b", None], partition=1, key=b"key", headers=headers, timestamp=stamp)
    flow.produce(["without key"], partition=0)
    api.start(flow).replay()

    def parts(message: Message) -> tuple[object, ...]:
        return message.value(), message.key(), message.headers(), message.partition()

    plain, *full = flow.written()
    assert parts(plain) == (b"without key", None, None, 0)
    assert [parts(m) for m in full] == [(value, b"key", headers, 1) for value in (b"a", b"b", None)]
    assert {m.timestamp()[1] for m in full} == {stamp}
    _settled(flow, 1, 3)


# With each API in `make test` too, and so on all versions.
@pytest.mark.parametrize("queries", ["foreachBatch", "connect"], indirect=True, scope="module")
def test_several_batches_a_restart_and_a_batch_without_rows(api: Api, flow: Flow) -> None:
    flow.produce(range(20))
    api.start(flow, max_offsets=10).replay()
    api.start(flow).replay()
    flow.produce(range(20, 25), partition=0)
    api.start(flow).replay()
    assert sorted(map(int, flow.values())) == list(range(25))
    assert [int(m.value() or b"") for m in flow.written() if m.partition() == 1] == list(
        range(1, 20, 2)
    )
    _settled(flow, 15, 10)


@pytest.mark.slow
def test_filtered_rows_and_exploded_rows(api: Api, new_flow: Callable[..., Flow]) -> None:
    flow = new_flow()
    # The second of three batches has no output; the third has output of only one partition.
    flow.produce(["long", "a", "b", "c", "longer", "d"])
    api.start(flow, "long_words", max_offsets=2).replay()
    assert sorted(flow.values()) == ["LONG", "LONGER"]
    _settled(flow, 3, 3)
    flow.checkpoint += "-letters"
    flow.produce(["xyz", "", "w"])
    api.start(flow, "letters", max_transaction_records=2).replay()
    assert sorted(flow.values()) == sorted(["LONG", "LONGER", *"xyzw", ""])
    _settled(flow, 5, 4)


@pytest.mark.slow
def test_a_union_of_two_topics(api: Api, new_flow: Callable[..., Flow]) -> None:
    flow, other = new_flow(), new_flow()
    flow.produce(["a0", "a1"])
    other.produce(["b0", "b1"])
    api.start(flow, "united", also=[other.source]).replay()
    assert sorted(flow.values()) == ["a0", "a1", "b0", "b1"]
    _settled(flow, 1, 1)


@pytest.mark.slow
def test_a_deleted_checkpoint_and_a_lost_commit(api: Api, flow: Flow) -> None:
    flow.produce(range(10))
    api.start(flow, "positioned", max_offsets=6).replay()
    # As if the driver had died between the tasks' commits and Spark's commit log.
    for name in ("1", ".1.crc"):
        Path(flow.checkpoint, "commits", name).unlink()
    api.start(flow, "positioned").replay()
    shutil.rmtree(flow.checkpoint)
    flow.produce(range(10, 20))
    api.start(flow, "positioned").replay()
    assert sorted(map(int, flow.values())) == list(range(20))
    assert look(flow, complete=True).verdict is Verdict.SOUND
    _settled(flow, 10, 10)


def test_a_failed_task(api: Api, flow: Flow, tmp_path: Path) -> None:
    """If Spark does not retry, the query ends with its error and is restarted."""
    flow.produce([*(f"a{n}" for n in range(200)), "fail"], partition=0, key=b"k" * 4_000)
    flow.produce((f"b{n}" for n in range(200)), partition=1, key=b"k" * 4_000)
    arguments = {name: str(tmp_path / name) for name in ("tripped", "go")}
    small = {"spark.sql.execution.arrow.maxRecordsPerBatch": "20"}
    first = api.start(
        flow, "failing", arguments=arguments, config=small, max_transaction_records=50
    )
    # Some rows of the task that is to fail are committed before it does.
    until(lambda: flow.committed(stable=False).get(0), lambda: "a first transaction")
    (tmp_path / "go").touch()
    error = first.error()
    if error is not None:
        assert "the user's own error" in error
        assert 0 < flow.committed(stable=False)[0] < 201
        api.start(flow, "failing", arguments=arguments).replay()
    assert (tmp_path / "tripped").exists()
    expected = ["fail", *(f"{letter}{n}" for letter in "ab" for n in range(200))]
    assert sorted(flow.values()) == sorted(expected)
    _settled(flow, 201, 200)


@pytest.mark.slow
def test_a_query_that_is_stopped_goes_on_where_it_was(api: Api, flow: Flow) -> None:
    flow.produce(range(10))
    query = api.start(flow, available_now=False)
    until(lambda: flow.committed() == {0: 5, 1: 5}, lambda: "a batch")
    query.stop()
    flow.produce(range(10, 20))
    api.start(flow).replay()
    assert sorted(map(int, flow.values())) == list(range(20))
    _settled(flow, 10, 10)


@pytest.mark.slow
def test_a_transactional_source_leaves_no_lag(api: Api, flow: Flow) -> None:
    """Its last rows are followed by markers, and by rows of an aborted transaction."""
    flow.produce_in_transaction("ab")
    flow.produce_in_transaction(["aborted"], commit=False)
    api.start(flow).replay()
    _settled(flow, *flow.ends())
    # An autoscaler starts it for these alone, once.
    flow.produce_in_transaction(["aborted"], commit=False)
    api.start(flow).replay()
    _settled(flow, *flow.ends())
    assert sorted(flow.values()) == ["a", "a", "b", "b"]
