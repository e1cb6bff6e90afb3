"""librdkafka through its C API: rows passed as columns arrive, and failures are reported."""

import ctypes
import random
import threading
import time
from collections.abc import Iterator
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
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.errors import ConfigurationError
from support.flow import Flow
from support.members import deadline, writer_settings
from support.proxy import KafkaProxy
from support.proxy_faults import DropRequest, HoldRequest
from support.topic_limits import configure

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _ignore(_record: FailedRecord) -> None:
    pass


def _unchanged() -> None:
    pass


def _handle(flow: Flow, on_failed: Any = _ignore, **settings: Any) -> Handle:
    client = ClientSettings({**flow.kafka, **settings})
    return Handle(client.for_producer(flow.name, 60_000), on_failed)


def _begun(flow: Flow, on_failed: Any = _ignore, **settings: Any) -> Handle:
    handle = _handle(flow, on_failed, **settings)
    handle.init_transactions(60)
    handle.begin_transaction()
    return handle


def _write(flow: Flow, rows: pa.RecordBatch, topic: str | None = None, **settings: Any) -> None:
    """Writes rows in one transaction, to the flow's target by default."""
    source = TopicPartition(flow.source, 0)
    found = SourceRows(source, source, rows)
    with closing(_begun(flow, **settings)) as handle:
        sender = RecordSender(handle, writer_settings(flow), _unchanged)
        sender.produce(found, target_topics(found, topic or flow.target), {})
        sender.flush(deadline())
        handle.commit_transaction(60)


def _numbers(flow: Flow) -> list[list[int]]:
    """The numbers in both partitions of the target, in order."""
    found: list[list[int]] = [[], []]
    for message in flow.written():
        found[message.partition() or 0].append(int(message.value() or b""))
    return found


def _values(*values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


def _produce(handle: Handle, topic: str, *values: bytes) -> int:
    rows = _values(*values)
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


@pytest.mark.parametrize("own", [False, True], ids=["batches", "one by one"])
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


def test_rows_with_and_without_a_partition_keep_their_order(flow: Flow) -> None:
    keys = [b"%d" % n for n in range(40)]
    columns = {
        "value": pa.array([b"%d" % n for n in range(400)]),
        "key": pa.array([keys[n % 40] for n in range(400)]),
        "partition": pa.array([(None, 0, None, 1)[n * 7 % 4] for n in range(400)], pa.int32()),
        "source_offset": pa.array(range(400), pa.int64()),
    }
    _write(flow, pa.RecordBatch.from_pydict(columns))
    values = _numbers(flow)
    assert [sorted(part) for part in values] == values
    assert sorted(values[0] + values[1]) == list(range(400))


def test_log_lines_are_reported_whatever_the_user_sets() -> None:
    lines: list[str] = []
    settings = {"bootstrap.servers": "127.0.0.1:9", "log.queue": False}

    def note(_level: int, line: str) -> None:
        lines.append(line)

    with closing(Handle(settings, _ignore, on_log=note)) as handle:
        end = time.monotonic() + 60
        while not lines and time.monotonic() < end:
            handle.poll(0.1)
    assert any(line.startswith("FAIL ") for line in lines)


@pytest.mark.parametrize("own", [False, True], ids=["batches", "one by one"])
def test_a_full_queue_keeps_the_order(flow: Flow, *, own: bool) -> None:
    count = 5_000
    columns = {
        "value": pa.array([b"%d" % n for n in range(count)]),
        "key": pa.array([b"%d" % (n % 40) for n in range(count)]),
        "source_offset": pa.array(range(count), pa.int64()),
    }
    if own:
        columns["partition"] = pa.array([n % 2 for n in range(count)], pa.int32())
    small: dict[str, Any] = {"queue.buffering.max.messages": 70, "linger.ms": 0}
    _write(flow, pa.RecordBatch.from_pydict(columns), **small)
    found = _numbers(flow)
    assert [sorted(part) for part in found] == found
    assert sorted(found[0] + found[1]) == list(range(count))
    if own:
        assert found == [[*range(0, count, 2)], [*range(1, count, 2)]]


@pytest.mark.parametrize("own", [False, True], ids=["batches", "one by one"])
def test_values_are_kept_until_they_are_sent(flow: Flow, *, own: bool) -> None:
    """Arrow reuses memory that nobody keeps: data written there would then be sent."""
    count, size = 200, 5_000
    with closing(_begun(flow, **{"linger.ms": 900})) as handle:
        sender = RecordSender(handle, writer_settings(flow), _unchanged)

        def hand_over() -> None:
            columns = {
                "value": pa.array([b"%05d" % n * 1_000 for n in range(count)]),
                "key": pa.array([b"k"] * count),
                "source_offset": pa.array(range(count), pa.int64()),
            }
            if own:
                columns["timestamp"] = pa.array([1_000] * count)
            # In memory of its own, which is free as soon as nobody keeps it.
            batch = pa.RecordBatch.from_pydict(columns)
            rows = batch.take(pa.array(range(count)))
            source = TopicPartition(flow.source, 0)
            found = SourceRows(source, source, rows)
            sender.produce(found, target_topics(found, flow.target), {})
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
        end = time.monotonic() + 60
        while handle.unacknowledged and time.monotonic() < end:
            handle.poll(0.01)
        handle.poll(0)
        assert handle._memory == []
        handle.abandon()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(2), pa.int32()])
def test_what_is_not_binary_is_not_handed_over(kind: pa.DataType) -> None:
    rows = pa.RecordBatch.from_pydict({"value": pa.array([None], kind)})
    with pytest.raises(TypeError, match=f"not {kind}".replace("[", r"\[")):
        messages(rows, np.arange(1))


# What fails -------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True], ids=["batches", "one by one"])
def test_sending_after_a_fatal_error_names_that_error(*, own: bool) -> None:
    client = {"bootstrap.servers": "127.0.0.1:9"}
    settings = WriterSettings(client=ClientSettings(client), group_id="group", topic="t")
    columns = {"value": pa.array([b"v"]), "source_offset": pa.array([7])}
    if own:
        columns["timestamp"] = pa.array([1_000])
    source = TopicPartition("in", 0)
    found = SourceRows(source, source, pa.RecordBatch.from_pydict(columns))
    fail = ctypes.CDLL(confluent_kafka.cimpl.__file__).rd_kafka_test_fatal_error
    fail.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    with closing(Handle({**client, "enable.idempotence": True}, _ignore)) as handle:
        fail(handle._handle, KafkaError._FENCED, b"by another")
        sender = RecordSender(handle, settings, _unchanged)
        message = "source in-0 offset 7, for topic 't': .*_FENCED.*by another"
        with pytest.raises(TransactionError, match=message):
            sender.produce(found, target_topics(found, "t"), {})


def test_the_row_at_fault_is_known_among_equal_ones(flow: Flow) -> None:
    """Their keys and values are the same: only the record's number identifies it."""
    configure(flow, flow.target, {"message.timestamp.before.max.ms": "60000"})
    now = int(time.time() * 1000)
    failed: list[tuple[int, int]] = []

    def note(record: FailedRecord) -> None:
        failed.append((record.code, record.number))
        sender.note_failure(record)

    columns = {
        "value": pa.array([b"same"] * 20),
        "key": pa.array([b"same"] * 20),
        "partition": pa.array([0] * 13 + [1] + [0] * 6, pa.int32()),
        "timestamp": pa.array([now] * 13 + [1_000] + [now] * 6),
        "source_offset": pa.array(range(100, 120), pa.int64()),
    }
    source = TopicPartition(flow.source, 1)
    found = SourceRows(source, source, pa.RecordBatch.from_pydict(columns))
    with closing(_begun(flow, note)) as handle:
        sender = RecordSender(handle, writer_settings(flow), _unchanged)
        sender.produce(found, target_topics(found, flow.target), {})
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
    handle = Handle({"bootstrap.servers": "127.0.0.1:9"}, _ignore)
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
    "bootstrap.servers": "127.0.0.1:9",
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.config": "scope=orders",
}


@pytest.mark.parametrize("more", [(), ("alice",), ("alice", {"tenant": "a"})], ids=len)
def test_a_token_is_made_when_librdkafka_asks(more: tuple[Any, ...]) -> None:
    asked: list[str] = []

    def make(config: str) -> tuple[Any, ...]:
        asked.append(config)
        return ("token", time.time() + 3_600, *more)

    errors: list[KafkaError] = []
    with closing(Handle({**_BY_TOKEN, "oauth_cb": make}, _ignore, errors.append)) as handle:
        handle.poll(10)
        handle.poll(0.2)
    assert asked == ["scope=orders"]
    assert [e for e in errors if e.code() == KafkaError._AUTHENTICATION] == []


@pytest.mark.parametrize("given", [None, ("token", 1.0), ("token", 2e9, "a", 7)])
def test_an_invalid_token_is_reported(given: Any) -> None:
    errors: list[KafkaError] = []

    def make(_config: str) -> Any:
        if given is None:
            raise RuntimeError("no token today")
        return given

    with closing(Handle({**_BY_TOKEN, "oauth_cb": make}, _ignore, errors.append)) as handle:
        end = time.monotonic() + 60
        while not errors and time.monotonic() < end:
            handle.poll(0.1)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    if given is None:
        assert "no token today" in errors[0].str()


# What librdkafka must be ------------------------------------------------------------------------


@pytest.fixture
def library_not_loaded() -> Iterator[None]:
    """A process checks the library once; check it again in the test, and after it."""
    librdkafka.library.cache_clear()
    yield
    librdkafka.library.cache_clear()


def _with_a_new_field(structure: type[ctypes.Structure], before: str) -> Any:
    class Other(ctypes.Structure):
        _fields_ = tuple(
            part
            for field in structure._fields_
            for part in ([("new", ctypes.c_int64)] if field[0] == before else []) + [field]
        )

    return np.dtype(Other)


@pytest.mark.usefixtures("library_not_loaded")
@pytest.mark.parametrize(
    ("name", "before"),
    [("MESSAGE", "key_size"), ("MESSAGE", "number"), ("ARGUMENT", "second"), ("ARGUMENT", "rest")],
)
def test_structures_of_another_form_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, before: str
) -> None:
    own = {"MESSAGE": librdkafka_api.Message, "ARGUMENT": librdkafka_api.Argument}[name]
    monkeypatch.setattr(librdkafka, name, _with_a_new_field(own, before))
    with pytest.raises(ConfigurationError, match=r"differ from those .* install confluent-kafka"):
        librdkafka.library()


@pytest.mark.usefixtures("library_not_loaded")
def test_a_library_without_a_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(librdkafka_api.FUNCTIONS, "no_such_call", (ctypes.c_int,))
    with pytest.raises(ConfigurationError, match=r"no_such_call.* install confluent-kafka"):
        librdkafka.library()


@pytest.mark.usefixtures("library_not_loaded")
def test_another_major_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(librdkafka, "_MAJOR", 3)
    with pytest.raises(ConfigurationError, match=r"has version 0x02.* install confluent-kafka"):
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


@pytest.mark.usefixtures("library_not_loaded")
def test_arguments_of_another_form_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Argument(ctypes.Structure):
        _fields_ = (*librdkafka_api.Argument._fields_[:-1], ("rest", ctypes.c_char * 48))

    monkeypatch.setattr(librdkafka, "ARGUMENT", np.dtype(Argument))
    with pytest.raises(ConfigurationError, match=r"differ from those .* install confluent-kafka"):
        librdkafka.library()
