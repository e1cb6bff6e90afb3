"""``spark-eos dead-letters``: list, count, show and replay."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.protocol.producer import EndTxnRequest
from pyspark.sql import SparkSession

from spark_eos._cli import dead_letter_replay, main
from spark_eos._client.persisted import FORMAT
from spark_eos._kafka.topic_partition import TopicPartition as OwnPartition
from spark_eos._spark import dead_letter_replay as replaying
from spark_eos.errors import CheckpointError
from spark_eos.testing import EmbeddedKafka
from support import groups
from support.dead_letters import dead_letters as run
from support.dead_letters import headers_of, letter_topic, write_not_utf8
from support.flow import Flow
from support.operating import COMMAND
from support.proxy import KafkaProxy
from support.proxy_faults import Fault, HoldRequest


@pytest.fixture(autouse=True)
def _producers() -> Iterator[None]:
    """One for each flow: to begin takes a producer a third of a second."""
    yield
    _of_flow.cache_clear()


@cache
def _of_flow(servers: str, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": transactional_id})
    producer.init_transactions(60)
    return producer


def write_letters(
    flow: Flow,
    numbers: Iterable[int],
    *,
    style: str = "dlq",
    commit: bool = True,
    name: str | None = None,
    **more: Any,
) -> str:
    """Dead letters of the flow's source, as a query writes them; letter n is in partition n % 2."""
    topic = name or f"dlq-{flow.name}"
    prefix = f"__{style}.errors."
    producer = _of_flow(flow.bootstrap_servers, f"t-{flow.name}")
    producer.begin_transaction()
    for n in numbers:
        told = {"topic": flow.source, "partition": str(n % 2), "offset": str(n), "reason": "error"}
        told |= {"format": str(FORMAT)} | more
        headers = [(prefix + name, text.encode()) for name, text in told.items()]
        producer.produce(
            topic,
            b"value %d" % n,
            b"k",
            n % 2,
            timestamp=1_000 + n,
            headers=[("own", b"h"), *headers],
        )
    producer.flush(60)
    if commit:
        producer.commit_transaction(20)
    else:
        producer.abort_transaction(20)
    # The command reads up to the last stable offset, which follows the transaction's end.
    flow.written(topic)
    return topic


@pytest.fixture(autouse=True)
def _topic(flow: Flow) -> None:
    letter_topic(flow)


@pytest.fixture
def proxied_flow(proxied_flow: Flow) -> Flow:
    """As everywhere, with a dead-letter topic."""
    letter_topic(proxied_flow)
    return proxied_flow


def test_list_count_and_show(flow: Flow) -> None:
    write_letters(flow, range(3), message="no order", group="g")
    connect: dict[str, Any] = {"connector.name": "bad\x1b[1m"}
    write_letters(flow, [8], style="connect", **connect)
    write_letters(flow, [7], commit=False)
    listed = run(flow, "list").stdout
    assert listed.count(f"{flow.source}:") == 4
    assert "no order" in listed
    assert "value 1" not in listed
    assert "\x1b[1m" not in listed
    assert run(flow, "list", "--group-id", "g", "--limit", "2").stdout.count(flow.source) == 2
    counted = run(flow, "count").stdout
    assert (
        "4 dead letters. 4 left to replay. Of these, 4 may have been replayed so long " in counted
    )
    assert "1 dead letter." not in run(flow, "count", "--reason", "too_large").stdout
    shown = run(flow, "show", "--partition", "1", "--offset", "0")
    assert "value: value 1" in shown.stdout
    assert "__dlq.errors.message: no order" in shown.stdout
    missing = run(flow, "show", "--partition", "1", "--offset", "99")
    assert (missing.exit_code, "no committed record at 1:99" in missing.output) == (1, True)


@pytest.mark.usefixtures("spark_eos_session")
def test_what_letters_hold_moves_no_cursor_and_stops_nothing(flow: Flow) -> None:
    evil = "x\x1b[2J\r\x9b31m\u202e"
    names = ("topic", "offset", "group", "message", "reason", "exception")
    hostile: dict[str, Any] = dict.fromkeys(names, evil) | {"format": str(FORMAT)}
    topic = write_letters(flow, [0], **hostile)
    producer = KafkaProducer(bootstrap_servers=flow.bootstrap_servers)
    told = [(evil, evil.encode()), *((f"__dlq.errors.{k}", v.encode()) for k, v in hostile.items())]
    producer.send(topic, evil.encode(), evil.encode(), headers=told, partition=0).get(60)
    producer.send(topic, b"\xff\x1b", b"\xff\x1b", partition=1).get(60)
    producer.close()
    commands = [("list",), ("count",), ("show", "--partition", "0", "--offset", "2")]
    commands += [("show", "--partition", "1", "--offset", "0")]
    commands += [("replay", "--from-beginning", "--to", flow.target)]
    for command in commands:
        shown = run(flow, *command)
        assert shown.exit_code == 0, (shown.output, shown.exception)
        assert [line for line in shown.output.split("\n") if not line.isprintable()] == []
    assert len(flow.written(flow.target)) == 3


@pytest.mark.usefixtures("spark_eos_session")
def test_a_replay_writes_each_letter_once(flow: Flow) -> None:
    write_letters(flow, range(10))
    own = ("--source", flow.source)
    dry = run(flow, "replay", "--from-beginning", "--dry-run")
    assert f"Would replay 10 dead letters: 10 to {flow.source}." in dry.stdout
    assert flow.written(flow.source) == []
    some = run(flow, "replay", *own, "--from-beginning", "--limit", "4")
    assert "Replayed 4 dead letters" in some.stdout
    assert len(flow.written(flow.source)) == 4
    assert "Replayed 6 dead letters" in run(flow, "replay", *own).stdout
    assert "Replayed 0 dead letters." in run(flow, "replay", *own).stdout
    # Nobody need be asked about nothing.
    assert "Replayed 0 dead letters." in run(flow, "replay").stdout
    found = flow.written(flow.source)
    assert [(m.partition(), m.value(), m.key()) for m in found] == [
        (n % 2, b"value %d" % n, b"k") for n in (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
    ]
    assert [headers_of(m) for m in found] == [{"own": "h"}] * 10
    assert found[1].timestamp()[1] == 1_002
    write_letters(flow, [10, 11])
    # Whatever the letters are written to, their progress is the same.
    assert "Replayed 2 dead letters" in run(flow, "replay", "--to", flow.target).stdout
    assert sorted(flow.values()) == ["value 10", "value 11"]


@pytest.mark.slow
@pytest.mark.usefixtures("spark_eos_session")
def test_a_replay_keeps_the_records_own_timestamps(flow: Flow) -> None:
    config = {"message.timestamp.type": "LogAppendTime"}
    topic = f"appended-{flow.name}"
    flow.broker.create_topic(topic, 2, config)
    # The last four are not believed: no numbers, and times that brokers or Spark refuse.
    told = ["1000", "0", "-5", "-1", "9" * 5_000, "soon", str(1 << 62), str(-1 << 62)]
    before = int(time.time() * 1000)
    for number, text in enumerate(told):
        style = ("dlq", "streams", "connect")[number % 3]
        write_letters(flow, [0], style=style, name=topic, timestamp=text)
    cluster = ("--bootstrap-servers", flow.bootstrap_servers, "--topic", topic)
    more = ("--source", flow.source, "--from-beginning")
    done = CliRunner().invoke(main, ["dead-letters", "replay", *cluster, *more])
    assert done.exit_code == 0, done.output
    found = [message.timestamp()[1] for message in flow.written(flow.source)]
    assert found[:4] == [1_000, 1, -5, -1]
    assert min(found[4:]) >= before
    assert [headers_of(m) for m in flow.written(flow.source)] == [{"own": "h"}] * 8


@pytest.mark.usefixtures("spark_eos_session")
def test_letters_that_can_not_be_replayed(flow: Flow) -> None:
    write_letters(flow, [0])
    write_letters(flow, [2], omitted="value of 9 bytes")
    write_letters(flow, [4])
    own = ("--source", flow.source)
    failed = run(flow, "replay", *own, "--from-beginning")
    assert failed.exit_code == 1
    assert "offset 2 does not hold its whole record (omitted: value of 9 bytes)" in failed.output
    assert flow.values(flow.source) == ["value 0"]
    rest = run(flow, "replay", *own, "--skip-omitted").stdout
    assert "Replayed 1 dead letter:" in rest
    assert "Passed over 1 without a value or headers." in rest
    assert flow.values(flow.source) == ["value 0", "value 4"]


@pytest.mark.usefixtures("spark_eos_session")
@pytest.mark.parametrize(
    ("config", "size"),
    [
        ("max.message.bytes", 10_000),
        pytest.param("message.timestamp.before.max.ms", 9, marks=pytest.mark.slow),
    ],
)
def test_a_letter_that_its_target_refuses_is_named(flow: Flow, config: str, size: int) -> None:
    small = f"small-{flow.name}"
    flow.broker.create_topic(small, 1, {config: str(size)})
    write_letters(flow, [0, 2], trace="x" * size)
    failed = run(flow, "replay", "--to", small, "--from-beginning")
    assert failed.exit_code == 1
    assert f"source dlq-{flow.name}-0 offset 0" in failed.output
    assert f"for topic '{small}': " in failed.output
    assert flow.values(small) == []


_PLACES: list[dict[str, Any]] = [
    {"topic": ""},
    {"topic": "t" * 40_000},
    {"topic": "../payroll"},
    {"partition": "\u00b2"},
    {"partition": "9" * 5_000},
    {"partition": "4294967296"},
    {"partition": "-1"},
]


@pytest.mark.slow
@pytest.mark.usefixtures("spark_eos_session")
def test_letters_that_do_not_tell_their_source_are_left(flow: Flow) -> None:
    write_letters(flow, [0])
    for told in _PLACES:
        write_letters(flow, [2], **told)
    write_letters(flow, [4], partition="77")
    write_letters(flow, [6])
    assert run(flow, "list").exit_code == 0
    assert "10 dead letters." in run(flow, "count").stdout
    own = ("--source", flow.source)
    replayed = run(flow, "replay", *own, "--from-beginning")
    assert replayed.exit_code == 0, replayed.output
    assert "Replayed 3 dead letters" in replayed.stdout
    assert "Left 7:\n  7 without a source topic here (--to TOPIC)" in replayed.stdout
    # One names a partition that its source topic does not have.
    assert sorted(flow.values(flow.source)) == ["value 0", "value 4", "value 6"]
    assert "Replayed 0 dead letters. Left 7:" in run(flow, "replay", *own).stdout
    to = ("--to", flow.target, "--from-beginning")
    # Which also begins where others have come to.
    assert "Replayed 7 dead letters" in run(flow, "replay", *to).stdout
    assert flow.values() == ["value 2"] * 7
    assert run(flow, "replay", "--to", flow.target).stdout == "Replayed 0 dead letters.\n"


@pytest.mark.usefixtures("spark_eos_session")
def test_letters_with_a_header_name_that_is_not_utf8_are_left(flow: Flow) -> None:
    topic = write_letters(flow, [0])
    told = headers_of(flow.written(topic)[0])
    # Python runs a line in another way once it has run several times.
    more = [(name, text.encode()) for name, text in told.items()]
    write_not_utf8(flow, topic, 0, more, number=20)
    write_letters(flow, [2])
    offset = flow.written(topic)[1].offset()
    listed = run(flow, "list")
    assert listed.exit_code == 0, listed.output
    assert listed.stdout.count("not UTF-8") == 20
    assert "22 dead letters." in run(flow, "count").stdout
    shown = run(flow, "show", "--partition", "0", "--offset", str(offset)).stdout
    assert "headers: can't be read, since a name is not UTF-8" in shown
    assert "value: not UTF-8" in shown
    own = ("--source", flow.source)
    replayed = run(flow, "replay", *own, "--from-beginning")
    assert replayed.exit_code == 0, replayed.output
    assert "Replayed 2 dead letters" in replayed.stdout
    assert "20 whose headers can't be read, which are never replayed" in replayed.stdout
    assert "Replayed 0 dead letters. Left 20" in run(flow, "replay", "--to", flow.target).stdout
    assert flow.values(flow.source) == ["value 0", "value 2"]
    assert "22 dead letters. 0 left to replay." in run(flow, "count").stdout


def test_letters_of_any_time_are_listed_and_shown(flow: Flow) -> None:
    topic = write_letters(flow, [1], timestamp="86400000")
    # As an earlier version has written it: with its record's timestamp, which its header tells.
    write_letters(flow, [3], timestamp="1003")
    producer = Producer(flow.kafka)
    headers: Any = [*headers_of(flow.written(topic)[0]).items()]
    for milliseconds in (-(10**15), -(1 << 62)):
        producer.produce(topic, b"old", b"k", 1, timestamp=milliseconds, headers=headers)
    assert producer.flush(60) == 0
    listed = run(flow, "list")
    assert listed.exit_code == 0, listed.output
    first, second, *old = [line for line in listed.stdout.splitlines() if flow.source in line]
    assert first.split()[1:3] == ["1970-01-01", "00:00:01"]
    assert second.split()[1] == "-"
    assert ["-1000000000000000 ms" in old[0], f"{-(1 << 62)} ms" in old[1]] == [True, True]
    assert "value: old" in run(flow, "show", "--partition", "1", "--offset", "4").stdout


@pytest.mark.usefixtures("spark_eos_session")
@pytest.mark.slow
def test_a_replay_writes_to_no_topic_that_only_a_letter_names(flow: Flow) -> None:
    payments = f"payments-{flow.name}"
    flow.broker.create_topic(payments, 2)
    write_letters(flow, [0, 1])
    write_letters(flow, [2, 4], topic=payments, reason="too_large")
    write_letters(flow, [6])
    refused = run(flow, "replay", "--from-beginning")
    assert refused.exit_code == 1
    assert f"  3 {flow.source}\n  2 {payments}\n" in refused.output
    assert f"--source {flow.source} --source {payments}" in refused.output
    assert flow.values(flow.source) == flow.values(payments) == []
    own = run(flow, "replay", "--source", flow.source, "--from-beginning").stdout
    assert f"Replayed 3 dead letters: 3 to {flow.source}. Left 2:" in own
    assert "5 dead letters. 2 left to replay. Of these, 2 may " in run(flow, "count").stdout
    assert f"  2 of {payments} (--source {payments})" in own
    assert sorted(flow.values(flow.source)) == ["value 0", "value 1", "value 6"]
    assert flow.values(payments) == []
    # What was left is replayed later, by each of several replays that are killed or limited.
    write_letters(flow, [8])
    more = ("replay", "--source", payments, "--to", flow.target)
    refused = run(flow, *more)
    assert f"-0 in group 'spark-eos-replay-dlq-{flow.name}/{payments}'" in refused.output
    limited = run(flow, *more, "--limit", "1", "--from-beginning")
    assert "Replayed 1 dead letter:" in limited.stdout
    lines = [line.split() for line in run(flow, "count").stdout.splitlines()]
    assert ["2", "1", "-", "too_large", "-"] in lines
    assert ["4", "1", "-", "error", "-"] in lines
    told = run(flow, "count", "--reason", "too_large").stdout
    assert "2 dead letters. 1 left to replay.\n" in told
    assert "Replayed 1 dead letter:" in run(flow, *more).stdout
    assert "Replayed 0 dead letters." in run(flow, *more).stdout
    assert flow.values() == ["value 2", "value 4"]
    assert "Replayed 1 dead letter:" in run(flow, "replay", "--source", flow.source).stdout
    assert len(flow.values(flow.source)) == 4


@pytest.mark.parametrize("answer", [pytest.param("y", marks=pytest.mark.slow), "n"])
def test_a_terminal_is_asked(flow: Flow, answer: str) -> None:
    write_letters(flow, [0, 1])
    keyboard, inside = pty.openpty()
    os.write(keyboard, f"{answer}\n".encode())
    done = subprocess.run(
        _command(flow, "--from-beginning"),
        check=False,
        stdin=inside,
        capture_output=True,
        text=True,
        timeout=240,
    )
    os.close(keyboard)
    os.close(inside)
    assert f"  2 {flow.source}\nWrite them? [y/N]" in done.stdout, done
    assert (done.returncode, len(flow.values(flow.source))) == ((0, 2) if answer == "y" else (1, 0))


@pytest.mark.usefixtures("spark_eos_session")
def test_nothing_is_replayed_where_it_is_not_known_how_far_it_was(flow: Flow) -> None:
    topic = write_letters(flow, [1, 3])
    own = ("--source", flow.source)
    for more in ([], ["--dry-run"]):
        refused = run(flow, "replay", *more)
        assert refused.exit_code == 1, refused.output
        group = f"spark-eos-replay-{topic}/{flow.source}"
        assert f"replayed is not known ({topic}-1 in group '{group}')" in refused.output
        assert "either this is the first replay" in refused.output
    assert flow.values(flow.source) == []
    assert "Replayed 2 dead" in run(flow, "replay", *own, "--from-beginning").stdout
    # Partitions that had no letters have an offset, too.
    write_letters(flow, [2])
    assert "Replayed 1 dead" in run(flow, "replay", *own).stdout
    flow.broker.add_partitions(topic, 4)
    producer = Producer(flow.kafka)
    headers: Any = [*headers_of(flow.written(topic)[0]).items()]
    producer.produce(topic, b"value 5", b"k", 3, headers=headers)
    assert producer.flush(60) == 0
    refused = run(flow, "replay", *own)
    assert f"replayed is not known ({topic}-3 in group" in refused.output
    # Begins anew in that partition alone.
    assert "Replayed 1 dead" in run(flow, "replay", *own, "--from-beginning").stdout
    assert sorted(flow.values(flow.source)) == ["value 1", "value 2", "value 3", "value 5"]
    # As if they had expired.
    admin = AdminClient(flow.kafka)
    admin.delete_consumer_groups([group])[group].result(60)
    refused = run(flow, "replay", *own)
    assert f"{topic}-0 in group '{group}', {topic}-1 in group" in refused.output
    assert len(flow.values(flow.source)) == 4


@pytest.mark.usefixtures("spark_eos_session")
def test_a_replay_that_another_has_overtaken_writes_what_is_left_of_its_own(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is planned before a local Spark has started, or while somebody is asked."""
    write_letters(flow, range(10))
    write = dead_letter_replay._write

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(dead_letter_replay, "_write", write)
        assert "Replayed 10 dead" in run(flow, "replay", *own, "--from-beginning").stdout
        return write(*arguments)

    own = ("--source", flow.source)
    monkeypatch.setattr(dead_letter_replay, "_write", overtaken)
    late = run(flow, "replay", *own, "--from-beginning", "--limit", "4")
    assert late.exit_code == 0, late.output
    assert "Replayed 0 dead letters. 4 that were there at first are not written" in late.stdout
    assert len(flow.values(flow.source)) == 10


@pytest.mark.usefixtures("spark_eos_session")
def test_offsets_that_an_operator_has_set_are_whole_and_within_the_topic(flow: Flow) -> None:
    topic = write_letters(flow, range(4))
    own = ("replay", "--source", flow.source, "--from-beginning")
    group = f"spark-eos-replay-{topic}/{flow.source}"

    def set_offsets(offsets: dict[int, int]) -> None:
        found = {OwnPartition(topic, p): offset for p, offset in offsets.items()}
        groups.set_offsets(flow.bootstrap_servers, group, found)

    set_offsets({0: 1})
    refused = run(flow, *own)
    assert f"others are missing ({topic}:1, {topic}:2)" in refused.output
    set_offsets({0: 1, 1: 1000, 2: 0})
    refused = run(flow, *own)
    assert f"{topic}-1 ends at " in refused.output
    assert "replayed it up to 1000" in refused.output
    # No letter seems to be left then, and new ones never would.
    set_offsets({0: 1000, 1: 1000, 2: 0})
    assert f"{topic}-0 ends at " in run(flow, *own).output
    assert flow.values(flow.source) == []
    set_offsets({0: 1, 1: 0, 2: 0})
    assert "Replayed 3 dead letters" in run(flow, *own).stdout


def test_a_replay_needs_no_default_file_system_that_is_local(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    """Spark would find an empty checkpoint elsewhere, and read on to the newest letter."""
    write_letters(flow, range(4))
    java: Any = spark_eos_session.sparkContext._jsc
    settings = java.hadoopConfiguration()
    before = settings.get("fs.defaultFS")
    settings.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    try:
        own = ("--source", flow.source, "--from-beginning", "--limit", "2")
        assert "Replayed 2 dead letters" in run(flow, "replay", *own).output
    finally:
        settings.set("fs.defaultFS", before)
    assert len(flow.values(flow.source)) == 2
    with pytest.raises(CheckpointError, match="Spark finds nothing at file:/nowhere"):
        replaying._check_begun(spark_eos_session, "file:/nowhere")


def test_more_topics_than_are_shown_can_not_be_agreed_to(flow: Flow) -> None:
    for n in range(21):
        write_letters(flow, [n], topic=f"forged-{n}")
    refused = run(flow, "replay", "--from-beginning")
    assert refused.exit_code == 1
    assert "would go to 21 topics" in refused.output
    assert "Nothing is written, since so many can't be agreed to at once" in refused.output


@pytest.mark.slow
@pytest.mark.usefixtures("spark_eos_session")
def test_each_replay_renews_all_offsets(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    flow = proxied_flow
    own = ("--source", flow.source)
    write_letters(flow, [0])
    assert "Replayed 1 " in run(flow, "replay", *own, "--from-beginning").stdout
    commits = proxy.on(OffsetCommitRequest, Fault(), times=None)
    # Of another source topic, too.
    for more in (own, ("--source", flow.target)):
        assert "Replayed 0 " in run(flow, "replay", *more).stdout
    for request in commits.hits:
        (topic,) = request.message().topics
        found = [(p.partition_index, p.committed_offset) for p in topic.partitions]
        assert sorted(found) == [(0, 2), (1, 0), (2, 0)]
    assert len(commits.hits) == 2


def _command(flow: Flow, *more: str) -> list[str]:
    where = ["--bootstrap-servers", flow.bootstrap_servers, "--topic", f"dlq-{flow.name}"]
    return [COMMAND, "dead-letters", "replay", *where, *more]


@pytest.mark.slow
@pytest.mark.usefixtures("spark_eos_session")
def test_a_replay_that_is_killed_doubles_and_loses_nothing(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    flow = proxied_flow
    write_letters(flow, range(10))
    own = ("--source", flow.source, "--from-beginning")
    until = threading.Event()
    # Of one partition nothing is committed, and of the other all.
    ends = proxy.on(EndTxnRequest, HoldRequest(until), times=1)
    killed = subprocess.Popen(
        _command(flow, *own), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 240
        while not ends.hits and killed.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert ends.hits, killed.communicate()[1]
        # One that is begun beside it takes over, whether the other has been killed or not.
        assert run(flow, "replay", *own).exit_code == 0
        assert sorted(flow.values(flow.source)) == [f"value {n}" for n in range(10)]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
        until.set()
    assert "Replayed 0 " in run(flow, "replay", *own).stdout
    assert sorted(flow.values(flow.source)) == [f"value {n}" for n in range(10)]


def test_offsets_of_an_earlier_version_are_refused(flow: Flow) -> None:
    topic = write_letters(flow, range(4))
    group = f"spark-eos-replay-{topic}"
    consumer = Consumer({**flow.kafka, "group.id": group})
    # As its producer committed them, with a zero byte behind each text.
    for partition, text in ((0, "left 0"), (1, "")):
        offset = TopicPartition(topic, partition, 2, text)
        consumer.commit(offsets=[offset], asynchronous=False)
    consumer.close()
    for more in (("--source", flow.source), ("--to", flow.target), ("--dry-run",)):
        refused = run(flow, "replay", *more, "--from-beginning")
        assert refused.exit_code == 1, refused.output
        assert f"{topic}-0 up to 2 without 0. This version has a group for" in refused.output
    assert "How many are left to replay is not known: an earlier" in run(flow, "count").stdout
    assert flow.values(flow.source) == flow.values() == []


@pytest.mark.slow
def test_without_pyspark_it_says_what_to_install(flow: Flow) -> None:
    write_letters(flow, [0])
    code = "import sys; sys.modules['pyspark'] = None; import spark_eos._cli as c; c.main()"
    command = [sys.executable, "-c", code, *_command(flow)[1:]]
    refused = subprocess.run(
        [*command, "--source", flow.source, "--from-beginning"],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert refused.returncode == 1, refused
    assert "has no module 'pyspark.sql': install spark-eos[spark]" in refused.stderr


def test_a_replay_creates_no_topic(tmp_path: Path) -> None:
    with EmbeddedKafka(properties={"auto.create.topics.enable": "true"}) as broker:
        flow = Flow(broker, str(tmp_path / "checkpoint"), str(tmp_path / "workers"))
        letter_topic(flow)
        write_letters(flow, [0, 2], topic="gone")
        # Also right after a broker's start: there is no coordinator yet.
        for more in (["--to", "gone"], ["--source", flow.source, "--source", "gone"]):
            failed = run(flow, "replay", "--from-beginning", *more)
            assert failed.exit_code == 1
            assert "topic 'gone', which" in failed.output
        assert flow.values(flow.source) == []
        assert "gone" not in AdminClient(flow.kafka).list_topics(timeout=60).topics


def test_a_topic_that_does_not_exist(flow: Flow) -> None:
    cluster = ("--bootstrap-servers", flow.bootstrap_servers)
    result = CliRunner().invoke(main, ["dead-letters", "count", *cluster, "--topic", "nowhere"])
    assert (result.exit_code, "'nowhere' does not exist" in result.output) == (1, True)


@pytest.mark.usefixtures("spark_eos_session")
def test_letters_in_another_format_are_listed_and_not_replayed(flow: Flow) -> None:
    write_letters(flow, range(2), format="1")
    assert "written in another format" in run(flow, "count").stdout
    replayed = run(flow, "replay", "--to", flow.target, "--from-beginning")
    assert "Replayed 0 dead letters. Left 2:" in replayed.stdout
    assert flow.values() == []
