"""Dead letters of rows whose source records are gone; without Spark."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from spark_eos._client.settings import ClientSettings
from spark_eos._exactly_once.transaction import TransactionWriter
from spark_eos._kafka.dead_letter_topic import DeadLetterTopic
from spark_eos._worker.dead_letters import LETTER
from spark_eos._worker.librdkafka_errors import TransactionError
from support.dead_letters import headers_of, write_not_utf8
from support.flow import Flow
from support.members import started, writer_settings
from support.planting import remove
from support.topic_limits import small_topic
from support.writing import (
    row_batch,
    rows,
    task_outcome,
    transactions,
    writer_with_dead_letters,
)

LIMIT = 10_000
_UNREADABLE = "headers, since one is null, or a name is not UTF-8 or has U+0000"


@contextmanager
def writing(flow: Flow, style: str = "dlq") -> Iterator[tuple[TransactionWriter, str]]:
    """A worker's transactions into a topic of small records, with a dead-letter topic."""
    small = small_topic(flow, LIMIT)
    with writer_with_dead_letters(flow, style=style, topic=small) as found:
        yield found, f"dlq-{flow.name}"


@pytest.mark.parametrize("style", ["dlq", "streams", "connect"])
def test_a_dead_letter_of_a_deleted_record_says_that_it_is_a_row(flow: Flow, style: str) -> None:
    flow.produce(range(2), partition=0)
    with writing(flow, style) as (found, dlq):
        remove(flow, flow.source, 0, before=1)
        found.add(rows(flow, 0, 0, 1, values=[b"x" * 2 * LIMIT, b"x" * (2 * LIMIT + 1)]))
        found.commit()
    first, second = flow.written(dlq)
    assert first.value() == b"x" * 2 * LIMIT
    assert headers_of(first)[f"__{style}.errors.record"] == "row"
    assert second.value() == b"1"
    assert f"__{style}.errors.record" not in headers_of(second)
    # The row is for another topic alone.
    topic = DeadLetterTopic(ClientSettings(flow.kafka), dlq, 20)
    assert [dead_letter.home for dead_letter in topic.read()] == [None, flow.source]


def test_a_dead_letter_says_that_headers_can_not_be_read(flow: Flow) -> None:
    write_not_utf8(flow, flow.source, 0)
    with writing(flow) as (found, dlq):
        found.add(rows(flow, 0, 0, values=[b"x" * 2 * LIMIT]))
        found.commit()
    (dead_letter,) = flow.written(dlq)
    assert dead_letter.value() == b"not UTF-8"
    headers = headers_of(dead_letter)
    assert headers["__dlq.errors.omitted"] == _UNREADABLE
    assert (headers["__dlq.errors.topic"], headers["__dlq.errors.offset"]) == (flow.source, "0")


def _header(name: str) -> pa.Array:
    """A column of one row with a header."""
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.array([[{"key": name, "value": b"x"}]], pa.list_(pair))


def test_a_header_whose_name_would_be_cut_is_refused(flow: Flow) -> None:
    with started(flow) as membership, transactions(flow, membership) as found:
        with pytest.raises(TransactionError, match=r"offset 0: a header .* U\+0000"):
            found.add(rows(flow, 0, 0, headers=_header("a\0b")))
        found.abort()
        batches = iter([row_batch(flow, 0, 0, headers=_header("a\0b"))])
        outcome = task_outcome(membership, writer_settings(flow), batches)
    assert outcome.failed
    # The reason says where.
    assert (outcome.reason or "").startswith(f"source {flow.source}-0 offset 0: a header ")
    assert flow.written() == []


def _carrying(*names: str) -> pa.Array:
    """A column of one row with an error, which includes its source record as Spark read it."""
    headers = [{"key": name, "value": base64.b64encode(b"x").decode()} for name in names]
    record = {"value": base64.b64encode(b"carried").decode(), "headers": headers}
    return pa.array([json.dumps({"error": "bad", "record": record})], pa.string())


@pytest.mark.parametrize("gone", [False, True])
def test_a_header_name_replaced_by_spark_is_not_written(
    flow: Flow,
    gone: bool,  # noqa: FBT001
) -> None:
    write_not_utf8(flow, flow.source, 0)
    flow.produce(["replacement"], partition=0, headers=[("own\ufffd", b"x")])
    with writing(flow) as (found, dlq):
        if gone:
            remove(flow, flow.source, 0, before=2)
        for offset in (0, 1):
            found.add(rows(flow, 0, offset, **{LETTER: _carrying("own\ufffd")}))
        found.commit()
    bad, good = flow.written(dlq)
    headers = headers_of(bad)
    assert headers["__dlq.errors.omitted"] == _UNREADABLE
    assert "own\ufffd" not in headers
    # If the record exists, its dead letter has all its contents, even a name that looks replaced.
    own = None if gone else "x"
    assert headers_of(good).get("own\ufffd") == own
    assert ("__dlq.errors.omitted" in headers_of(good)) == gone
    assert [m.value() for m in (bad, good)] == (
        [b"carried"] * 2 if gone else [b"not UTF-8", b"replacement"]
    )
    # They are the source's records, whether or not it still has them.
    assert "__dlq.errors.record" not in headers


def test_a_row_whose_own_header_can_not_be_written(flow: Flow) -> None:
    flow.produce(["a"], partition=0)
    items = pa.StructArray.from_arrays(
        [pa.array([b"caf\xe9"], pa.binary()).view(pa.string()), pa.array([b"x"], pa.binary())],
        ["key", "value"],
    )
    headers = pa.ListArray.from_arrays(pa.array([0, 1]), items)
    with writing(flow) as (found, dlq):
        found.add(rows(flow, 0, 0, headers=headers))
        found.commit()
    (dead_letter,) = flow.written(dlq)
    assert headers_of(dead_letter)["__dlq.errors.reason"] == "invalid_header"
    assert dead_letter.value() == b"a"


def test_a_records_own_header_explains_no_dead_letter(flow: Flow) -> None:
    forged = "__dlq.errors.cluster\0"
    record = {"value": base64.b64encode(b"whole").decode(), "headers": [{"key": forged}]}
    with writing(flow) as (found, dlq):
        dead_letter = pa.array([json.dumps({"error": "bad", "record": record})], pa.string())
        found.add(rows(flow, 0, 0, headers=_header(forged), **{LETTER: dead_letter}))
        found.commit()
    (dead_letter,) = flow.written(dlq)
    assert dead_letter.value() == b"whole"
    explained = headers_of(dead_letter)
    assert "__dlq.errors.cluster" not in explained
    assert explained["__dlq.errors.reason"] == "error"
    assert explained["__dlq.errors.omitted"] == _UNREADABLE


def test_a_dead_letter_of_a_dead_letter_says_what_it_replaces(flow: Flow) -> None:
    own, omitted = ("own", b"1"), ("__dlq.errors.omitted", b"value of 9 bytes")
    explained = [("__dlq.errors.reason", b"error"), ("__dlq.errors.format", b"2")]
    flow.produce(["a"], partition=0, headers=[own, *explained])
    flow.produce(["b"], partition=0, headers=[own, omitted, *explained])
    flow.produce(["c"], partition=0, headers=[own, omitted])
    with writing(flow) as (found, dlq):
        found.add(rows(flow, 0, 0, 1, 2, error=["bad"] * 3))
        found.commit()
    again = [*DeadLetterTopic(ClientSettings(flow.kafka), dlq, 20).read()]
    assert [letter.own_headers for letter in again] == [(own,)] * 3
    assert [letter.incomplete for letter in again] == [
        None,
        "omitted: value of 9 bytes",
        "omitted: 1 of its headers, such as __dlq.errors.omitted",
    ]
