"""librdkafka through its C API: rows passed as columns arrive, and failures are reported."""

import ctypes
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka.protocol.producer import ProduceRequest

from spark_eos._client import librdkafka, librdkafka_api
from spark_eos._client.confluent_traps import headers_of
from spark_eos._client.librdkafka import FailedRecord, Handle
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.record_arrays import messages
from spark_eos._worker.record_sender import RecordSender
from spark_eos._worker.records import SourceRows, target_topics
from spark_eos.errors import ConfigurationError
from support.flow import Flow
from support.members import deadline, writer_settings
from support.proxy import KafkaProxy
from support.proxy_faults import DropRequest, HoldRequest
from support.queries import until
from support.topic_limits import configure

NOWHERE = {"bootstrap.servers": "127.0.0.1:9"}
_KINDS = {"partition": pa.int32()}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


each_way = pytest.mark.parametrize("own", [False, True], ids=["batches", "one by one"])


def _rows(values: Sequence[bytes], first: int = 0, **columns: Any) -> pa.RecordBatch:
    """Rows of consecutive source records."""
    found = {
        "value": pa.array(values),
        "source_offset": pa.array(range(first, first + len(values)), pa.int64()),
        **{name: pa.array(column, _KINDS.get(name)) for name, column in columns.items()},
    }
    return pa.RecordBatch.from_pydict(found)


def _ignore(_record: FailedRecord) -> None:
    pass


def _unchanged() -> None:
    pass


def _begun(flow: Flow, on_failed: Any = _ignore, **settings: Any) -> Handle:
    client = ClientSettings({**flow.kafka, **settings})
    handle = Handle(client.for_producer(flow.name, 60_000), on_failed)
    handle.init_transactions(60)
    handle.begin_transaction()
    return handle


def _send(
    sender: RecordSender, flow: Flow, rows: pa.RecordBatch, topic: str, place: int = 0
) -> None:
    """Hands rows to librdkafka; ``place`` is their source partition."""
    source = TopicPartition(flow.source, place)
    found = SourceRows(source, source, rows)
    sender.produce(found, target_topics(found, topic), {})


def _write(flow: Flow, rows: pa.RecordBatch, topic: str | None = None, **settings: Any) -> None:
    """Writes rows in one transaction, to the flow's target by default."""
    with closing(_begun(flow, **settings)) as handle:
        sender = RecordSender(handle, writer_settings(flow), _unchanged)
        _send(sender, flow, rows, topic or flow.target)
        sender.flush(deadline())
        handle.commit_transaction(60)


def _numbers(flow: Flow) -> list[list[int]]:
    """The numbers in both partitions of the target, in order."""
    found: list[list[int]] = [[], []]
    for message in flow.written():
        found[message.partition() or 0].append(int(message.value() or b""))
    return found


def _serve(handle: Handle, condition: Callable[[], Any]) -> None:
    """Serves librdkafka's events until a condition holds."""

    def served() -> Any:
        handle.poll(0.02)
        return condition()

    until(served, lambda: "librdkafka")


def _produce(handle: Handle, topic: str, *values: bytes) -> int:
    rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    taken, error = handle.produce_batch(topic, messages(rows, np.arange(len(values))), rows)
    assert error is None
    return taken


# What is handed over ----------------------------------------------------------------------------


def _contents(rng: random.Random) -> bytes | None:
    return rng.choice([None, b"", b"k", rng.randbytes(rng.randrange(300))])


def _headers(rng: random.Random) -> list[dict[str, Any]] | None:
    names = ["trace", "", "Grüße", "trace"]
    found = [{"key": rng.choice(names), "value": _contents(rng)} for _ in range(rng.randrange(4))]
    return rng.choice([None, found])


@each_way
@pytest.mark.parametrize("large", [False, True], ids=["binary", "large binary"])
def test_rows_of_all_kinds_arrive_as_they_are(flow: Flow, *, own: bool, large: bool) -> None:
    rng = random.Random(50)
    count, kind = 500, pa.large_binary() if large else pa.binary()
    # Without partitions of their own, rows must have but one to go to.
    targets = [f"{name}-{flow.name}" for name in "ab"]
    for target in targets:
        flow.broker.create_topic(target, 2 if own else 1)
    columns = {
        "value": pa.array([_contents(rng) for _ in range(count)], kind),
        "key": pa.array([_contents(rng) for _ in range(count)], kind),
        "topic": pa.array([rng.choice([None, *targets]) for _ in range(count)]),
        "source_offset": pa.array(range(count), pa.int64()),
    }
    if own:
        columns["partition"] = pa.array([rng.choice([0, 1]) for _ in range(count)], pa.int32())
        columns["headers"] = pa.array([_headers(rng) for _ in range(count)], HEADERS)
        columns["timestamp"] = pa.array([rng.choice([1_000, 5_000]) for _ in range(count)])
    # A part of them: Arrow's offsets do not begin at 0 then.
    rows = pa.RecordBatch.from_pydict(columns).slice(100, 300)
    _write(flow, rows, targets[0])
    wanted: dict[tuple[str, int], list[Any]] = {}
    for row in rows.to_pylist():
        place = (row["topic"] or targets[0], row.get("partition", 0))
        headers = tuple((h["key"], h["value"]) for h in row.get("headers") or ())
        content = (row["key"], row["value"], headers, row.get("timestamp"))
        wanted.setdefault(place, []).append(content)
    arrived: dict[tuple[str, int], list[Any]] = {}
    for topic in targets:
        for m in flow.written(topic):
            timestamp = m.timestamp()[1] if own else None
            place = (topic, m.partition() or 0)
            arrived.setdefault(place, []).append((m.key(), m.value(), headers_of(m), timestamp))
    assert arrived == wanted


_MIXED = [(None, 0, None, 1)[n * 7 % 4] for n in range(400)]


@pytest.mark.parametrize(
    ("count", "partitions", "limits"),
    [
        (400, _MIXED, {}),
        # librdkafka's queue is full most of the time.
        (5_000, None, {"queue.buffering.max.messages": 70, "linger.ms": 0}),
        (5_000, [0, 1] * 2_500, {"queue.buffering.max.messages": 70, "linger.ms": 0}),
    ],
    ids=["some with a partition", "full queue", "full queue, one by one"],
)
def test_rows_keep_their_order(
    flow: Flow, count: int, partitions: list[int | None] | None, limits: dict[str, Any]
) -> None:
    values = [b"%d" % n for n in range(count)]
    given: dict[str, Any] = {} if partitions is None else {"partition": partitions}
    _write(flow, _rows(values, key=[b"%d" % (n % 40) for n in range(count)], **given), **limits)
    found = _numbers(flow)
    assert [sorted(part) for part in found] == found
    assert sorted(found[0] + found[1]) == list(range(count))
    for number, partition in enumerate(partitions or ()):
        assert partition is None or number in found[partition]


def test_log_lines_are_reported_whatever_the_user_sets() -> None:
    lines: list[str] = []
    settings = {**NOWHERE, "log.queue": False}

    def note(_level: int, line: str) -> None:
        lines.append(line)

    with closing(Handle(settings, _ignore, on_log=note)) as handle:
        _serve(handle, lambda: lines)
    assert any(line.startswith("FAIL ") for line in lines)


@each_way
def test_values_are_kept_until_they_are_sent(flow: Flow, *, own: bool) -> None:
    """Arrow reuses memory that nobody keeps: data written there would then be sent."""
    count, size = 200, 5_000
    with closing(_begun(flow, **{"linger.ms": 900})) as handle:
        sender = RecordSender(handle, writer_settings(flow), _unchanged)

        def hand_over() -> None:
            times: dict[str, Any] = {"timestamp": [1_000] * count} if own else {}
            batch = _rows([b"%05d" % n * 1_000 for n in range(count)], key=[b"k"] * count, **times)
            # In memory of its own, which is free as soon as nobody keeps it.
            _send(sender, flow, batch.take(pa.array(range(count))), flow.target)
            sender._sent.clear()

        hand_over()
        spoiled = [pa.array([b"\0" * size] * count).take(pa.array(range(count))) for _ in range(50)]
        sender.flush(deadline())
        handle.commit_transaction(60)
        assert spoiled
        assert handle._memory == []
    assert [m.value() for m in flow.written()] == [b"%05d" % n * 1_000 for n in range(count)]


def test_memory_is_kept_no_longer_than_until_all_is_acknowledged(flow: Flow) -> None:
    """While the transaction continues: dead letters may be much larger than its rows."""
    with closing(_begun(flow, **{"linger.ms": 0})) as handle:
        _produce(handle, flow.target, b"a", b"b")
        assert handle._memory != []
        _serve(handle, lambda: not handle.unacknowledged)
        handle.poll(0)
        assert handle._memory == []
        handle.abandon()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(2), pa.int32()])
def test_what_is_not_binary_is_not_handed_over(kind: pa.DataType) -> None:
    rows = pa.RecordBatch.from_pydict({"value": pa.array([None], kind)})
    with pytest.raises(TypeError, match=f"not {kind}".replace("[", r"\[")):
        messages(rows, np.arange(1))


# What fails -------------------------------------------------------------------------------------


@each_way
def test_sending_after_a_fatal_error_names_that_error(flow: Flow, *, own: bool) -> None:
    fail = ctypes.CDLL(confluent_kafka.cimpl.__file__).rd_kafka_test_fatal_error
    fail.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    with closing(Handle({**NOWHERE, "enable.idempotence": True}, _ignore)) as handle:
        fail(handle._handle, KafkaError._FENCED, b"by another")
        sender = RecordSender(handle, writer_settings(flow), _unchanged)
        message = f"source {flow.source}-0 offset 7, for topic 't': .*_FENCED.*by another"
        with pytest.raises(TransactionError, match=message):
            _send(sender, flow, _rows([b"v"], 7, **({"timestamp": [1_000]} if own else {})), "t")


def test_the_row_at_fault_is_known_among_equal_ones(flow: Flow) -> None:
    """Their keys and values are the same: only the record's number identifies it."""
    configure(flow, flow.target, {"message.timestamp.before.max.ms": "60000"})
    now = int(time.time() * 1000)
    failed: list[tuple[int, int]] = []

    def note(record: FailedRecord) -> None:
        failed.append((record.code, record.number))
        sender.note_failure(record)

    same = [b"same"] * 20
    places = {"partition": [0] * 13 + [1] + [0] * 6, "timestamp": [now] * 13 + [1_000] + [now] * 6}
    with closing(_begun(flow, note)) as handle:
        sender = RecordSender(handle, writer_settings(flow), _unchanged)
        _send(sender, flow, _rows(same, 100, key=same, **places), flow.target, place=1)
        with pytest.raises(TransactionError, match=f"source {flow.source}-1 offset 113, for topic"):
            sender.flush(deadline())
        handle.abandon()
    assert (KafkaError.INVALID_TIMESTAMP, 14) in failed


def test_dropped_records_are_reported(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    proxy.on(ProduceRequest, DropRequest(), times=None)
    failed: list[int] = []
    with closing(_begun(proxied_flow, lambda record: failed.append(record.number))) as handle:
        assert _produce(handle, proxied_flow.target, b"a", b"b", b"c") == 3
        assert handle.flush(0.4) == 3
        began = time.monotonic()
        handle.abandon()
        assert time.monotonic() - began < 5
        assert handle.flush(5) == 0
    # Those of different partitions in any order.
    assert sorted(failed) == [0, 1, 2]


def test_a_wait_ends_with_the_last_answer_or_in_time(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    answered = threading.Event()
    proxy.on(ProduceRequest, HoldRequest(answered))
    with closing(_begun(proxied_flow)) as handle:
        _produce(handle, proxied_flow.target, b"late")
        for seconds in (-1.0, 0.0, 0.4):
            began = time.monotonic()
            assert handle.flush(seconds) == 1
            assert seconds - 0.05 <= time.monotonic() - began < seconds + 10
        threading.Timer(0.3, answered.set).start()
        assert handle.flush(60) == 0
        handle.commit_transaction(60)
    assert proxied_flow.values() == ["late"]


def test_a_closed_producer_is_an_error_and_no_crash() -> None:
    handle = Handle(NOWHERE, _ignore)
    handle.topic("known")
    handle.close()
    handle.close()
    for use in (
        lambda: handle.poll(0),
        lambda: handle.flush(0),
        lambda: _produce(handle, "known", b"a"),
        lambda: handle.produce_each(np.zeros(1, librdkafka_api.ARGUMENT), [1], None),
        lambda: handle.commit_transaction(1),
        handle.abandon,
        lambda: handle.unacknowledged,
        lambda: handle.connect("known", 1),
    ):
        with pytest.raises(KafkaException, match="the producer is closed"):
            use()


# Tokens -----------------------------------------------------------------------------------------

_BY_TOKEN = {
    **NOWHERE,
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.config": "scope=orders",
}


@pytest.mark.parametrize(
    ("given", "valid"),
    [
        *((("token", 2e9, *more), True) for more in ((), ("alice",), ("alice", {"tenant": "a"}))),
        (None, False),
        (("token", 1.0), False),
        (("token", 2e9, "a", 7), False),
    ],
)
def test_a_token_is_made_when_librdkafka_asks(given: Any, *, valid: bool) -> None:
    asked: list[str] = []
    errors: list[KafkaError] = []

    def make(config: str) -> Any:
        asked.append(config)
        if given is None:
            raise RuntimeError("no token today")
        return given

    with closing(Handle({**_BY_TOKEN, "oauth_cb": make}, _ignore, errors.append)) as handle:
        _serve(handle, lambda: errors or (valid and asked))
        handle.poll(0.2)
    found = [e for e in errors if e.code() == KafkaError._AUTHENTICATION]
    assert asked[0] == "scope=orders"
    assert (found == []) == valid
    assert given is not None or "no token today" in found[0].str()


# What librdkafka must be ------------------------------------------------------------------------


def _other(structure: type[ctypes.Structure], before: str, size: int) -> Any:
    """A structure with a new field before a given one or, with a size, that size of the field."""
    fields: list[Any] = []
    for field in structure._fields_:
        if field[0] == before:
            fields.append((before, ctypes.c_char * size) if size else ("new", ctypes.c_int64))
        if field[0] != before or not size:
            fields.append(field)
    return np.dtype(type("Other", (ctypes.Structure,), {"_fields_": fields}))


@pytest.mark.parametrize(
    ("name", "other", "named"),
    [
        ("MESSAGE", _other(librdkafka_api.Message, "key_size", 0), "differ from those"),
        ("MESSAGE", _other(librdkafka_api.Message, "number", 0), "differ from those"),
        ("ARGUMENT", _other(librdkafka_api.Argument, "second", 0), "differ from those"),
        ("ARGUMENT", _other(librdkafka_api.Argument, "rest", 0), "differ from those"),
        ("ARGUMENT", _other(librdkafka_api.Argument, "rest", 48), "differ from those"),
        ("_MAJOR", 3, "has version 0x02"),
        (
            "FUNCTIONS",
            {**librdkafka_api.FUNCTIONS, "no_such_call": (ctypes.c_int,)},
            "no_such_call",
        ),
    ],
)
def test_another_library_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, other: Any, named: str
) -> None:
    # A process checks the library once; in the test once more, and after it.
    librdkafka.library.cache_clear()
    monkeypatch.setattr(librdkafka_api if name == "FUNCTIONS" else librdkafka, name, other)
    with pytest.raises(ConfigurationError, match=f"{named}.* install confluent-kafka"):
        librdkafka.library()


def test_other_threads_run_while_it_waits(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    proxy.on(ProduceRequest, DropRequest(), times=None)
    with closing(_begun(proxied_flow)) as handle:
        _produce(handle, proxied_flow.target, b"lost")
        turns = 0
        over = threading.Event()

        def count() -> None:
            nonlocal turns
            while not over.wait(0.005):
                turns += 1

        thread = threading.Thread(target=count)
        thread.start()
        # One call of librdkafka's.
        handle._library.flush(handle._handle, 400)
        over.set()
        thread.join()
        handle.abandon()
    assert turns > 5
