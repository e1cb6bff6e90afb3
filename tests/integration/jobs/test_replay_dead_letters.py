"""jobs/replay_dead_letters.py: which dead letters it replays, and the records it writes."""

import os
import shlex
import signal
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka.protocol.producer import EndTxnRequest

from support.dead_letters import (
    create_dead_letter_topic,
    dead_letters,
    headers_of,
    replay,
    replay_arguments,
    write_dead_letters,
    write_not_utf8,
)
from support.flow import Flow
from support.jobs import submit
from support.proxy import KafkaProxy
from support.proxy_faults import HoldRequest

pytestmark = pytest.mark.usefixtures("spark_eos_session")


@pytest.fixture(autouse=True)
def topic(request: pytest.FixtureRequest) -> str:
    """The flow's dead-letter topic."""
    through_proxy = "proxied_flow" in request.fixturenames
    return create_dead_letter_topic(
        request.getfixturevalue("proxied_flow" if through_proxy else "flow")
    )


def printed(flow: Flow, *more: str) -> list[list[str]]:
    """The arguments of the commands printed for the flow's dead letters."""
    shown = dead_letters(flow, "count", *more).stdout
    commands = [part for part in shown.split("\n\n") if part.startswith("spark-submit")]
    words = (shlex.split(command.replace("\\\n", " ")) for command in commands)
    return [line[line.index("jobs/replay_dead_letters.py") + 1 :] for line in words]


def values(numbers: Iterable[int]) -> list[str]:
    return sorted(f"value {number}" for number in numbers)


@pytest.mark.slow
def test_records_come_back_as_they_were_and_once(flow: Flow, tmp_path: Any) -> None:
    write_dead_letters(flow, range(10), timestamp="1000")
    write_dead_letters(flow, [11], commit=False)
    (command,) = printed(flow)
    (index,) = (number for number, word in enumerate(command) if word.startswith("checkpoints/"))
    command[index] = str(tmp_path / command[index])
    # As if this client read aborted records, too.
    more = ("--kafka", "isolation.level=read_uncommitted")
    assert replay(flow, *command, *more).exit_code == 0
    written = flow.written(flow.source)
    assert [(m.partition(), m.value(), m.key(), m.timestamp()[1]) for m in written] == [
        (n % 2, b"value %d" % n, b"k", 1_000) for n in (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
    ]
    assert [headers_of(m) for m in written] == [{"own": "h"}] * 10
    # The same command is printed again, and continues: also where only the offsets are left.
    write_dead_letters(flow, [12])
    assert [word for word in printed(flow)[0] if "checkpoints" not in word] == [
        word for word in command if "checkpoints" not in word
    ]
    command[index] += "-lost"
    assert replay(flow, *command).exit_code == 0
    assert sorted(flow.values(flow.source)) == values([*range(10), 12])


_OTHERS: list[dict[str, Any]] = [
    {"topic": "payments", "reason": "too_large"},
    {"cluster": "another"},
    {"record": "row"},
    {"topic": "../payroll"},
    {"partition": "9" * 5_000},
    {"format": "1"},
]


@pytest.mark.slow
def test_others_are_left_to_another_replay(flow: Flow) -> None:
    write_dead_letters(flow, [0, 1])
    for number, fields in enumerate(_OTHERS):
        write_dead_letters(flow, [10 + number], **fields)
    assert replay(flow).exit_code == 0
    assert sorted(flow.values(flow.source)) == values([0, 1])
    elsewhere = ("--all", "--target", flow.target)
    rest = (*elsewhere, "--where", "dead_letter.reason <> 'error' and source.partition = 0")
    assert replay(flow, *rest, group="rest").exit_code == 0
    assert flow.values() == ["value 10"]
    # The last one can't be read.
    failed = replay(flow, *elsewhere, group="all")
    assert failed.exit_code == 1
    assert "written in another format" in failed.output
    whole = ("--where", "dead_letter.incomplete is null")
    assert replay(flow, *elsewhere, *whole, group="all").exit_code == 0
    assert sorted(flow.values()) == values([10, 0, 1, 10, 11, 12, 13, 14])


@pytest.mark.slow
def test_timestamps_are_the_records_own(flow: Flow) -> None:
    appended = f"appended-{flow.name}"
    flow.broker.create_topic(appended, 2, {"message.timestamp.type": "LogAppendTime"})
    # The last four are not believed: no numbers, and times that Spark refuses.
    timestamps = ["1000", "0", "-5", "-1", "9" * 5_000, "soon", str(1 << 62), str(-1 << 62)]
    before = int(time.time() * 1000)
    for number, text in enumerate(timestamps):
        style = ("dlq", "streams", "connect")[number % 3]
        write_dead_letters(flow, [0], style=style, name=appended, timestamp=text)
    done = replay(flow, "--source", appended)
    assert done.exit_code == 0, done.output
    found = [message.timestamp()[1] for message in flow.written(flow.source)]
    assert found[:4] == [1_000, 1, -5, -1]
    assert min(found[4:]) >= before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"omitted": "value of 9 bytes"}, "omitted: value of 9 bytes"),
        pytest.param({}, "a header's name is not UTF-8", marks=pytest.mark.slow),
    ],
)
def test_incomplete_ones_end_the_replay_or_are_left_out(
    flow: Flow, topic: str, fields: dict[str, Any], missing: str
) -> None:
    write_dead_letters(flow, [0])
    if fields:
        write_dead_letters(flow, [2], **fields)
    else:
        headers = headers_of(flow.written(topic)[0]).items()
        write_not_utf8(flow, topic, 0, [(name, text.encode()) for name, text in headers])
    write_dead_letters(flow, [4])
    failed = replay(flow)
    assert failed.exit_code == 1
    offset = flow.written(topic)[1].offset()
    assert f"dead letter {topic}-0 offset {offset} does not hold its" in failed.output
    assert f"({missing})" in failed.output
    assert "value 4" not in flow.values(flow.source)
    left = replay(flow, "--where", "dead_letter.incomplete is null")
    assert left.exit_code == 0, left.output
    assert flow.values(flow.source) == ["value 0", "value 4"]


@pytest.mark.parametrize("fault", ["refused", pytest.param("incomplete", marks=pytest.mark.slow)])
def test_a_row_that_fails_again_is_a_dead_letter_again(flow: Flow, topic: str, fault: str) -> None:
    small = f"small-{flow.name}"
    flow.broker.create_topic(small, 1, {"max.message.bytes": "10000"})
    write_dead_letters(flow, [0])
    more: dict[str, Any] = {"omitted": "all"} if fault == "incomplete" else {}
    write_dead_letters(flow, [2], **more)
    long = ("--all", "--target", small)
    if fault == "refused":
        headers: Any = [*headers_of(flow.written(topic)[0]).items()]
        producer = Producer(flow.kafka)
        producer.produce(topic, b"x" * 20_000, b"k", 0, headers=headers)
        assert producer.flush(60) == 0
        failed = replay(flow, *long)
        assert failed.exit_code == 1
        assert f"source {topic}-0 offset " in failed.output
        assert f"for topic '{small}': " in failed.output
    refused = replay(flow, *long, "--dead-letter-topic", topic, group="loop")
    assert refused.exit_code == 1
    assert f"{topic!r}" in refused.output
    again = f"again-{flow.name}"
    flow.broker.create_topic(again)
    done = replay(flow, *long, "--dead-letter-topic", again, group="again")
    assert done.exit_code == 0, done.output
    (dead_letter,) = flow.written(again)
    assert headers_of(dead_letter)["__dlq.errors.topic"] == topic
    assert len(flow.values(small)) == (2 if fault == "refused" else 1)


@pytest.mark.slow
def test_a_partition_that_is_gone(flow: Flow) -> None:
    write_dead_letters(flow, [0], partition="77")
    failed = replay(flow)
    assert failed.exit_code == 1
    assert f"dlq-{flow.name}-0 offset 0" in failed.output
    assert "Unknown partition" in failed.output
    assert replay(flow, "--by-key").exit_code == 0
    assert flow.values(flow.source) == ["value 0"]


@pytest.mark.parametrize(
    ("more", "status", "text"),
    [
        (["--trigger", "1 second"], 2, "leave --trigger out"),
        (["--starting-offsets", "latest"], 2, "leave --starting-offsets out"),
        (["--where", "dead_letter.colour = 1"], 1, "--where: [FIELD_NOT_FOUND]"),
        (["--where", "1 ="], 1, "--where: [PARSE_SYNTAX_ERROR]"),
        (["--where", "value in (select 1)"], 1, "--where"),
    ],
)
def test_bad_arguments(flow: Flow, more: list[str], status: int, text: str) -> None:
    refused = replay(flow, *more)
    assert refused.exit_code == status
    assert text in refused.output


@pytest.mark.slow
def test_topics_with_long_names(flow: Flow) -> None:
    names = [f"{initial}-{flow.name}".ljust(120, initial) for initial in "sd"]
    for name in names:
        flow.broker.create_topic(name)
    source, dlq = names
    write_dead_letters(flow, [0], name=dlq, topic=source)
    (command,) = printed(flow, "--topic", dlq)
    done = replay(flow, *command, "--checkpoint-location", flow.checkpoint)
    assert done.exit_code == 0, done.output
    assert flow.values(source) == ["value 0"]


@pytest.mark.slow
def test_one_that_is_killed_doubles_and_loses_nothing(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    flow = proxied_flow
    write_dead_letters(flow, range(10))
    until = threading.Event()
    # Of one partition nothing is committed, and of the other all.
    ends = proxy.on(EndTxnRequest, HoldRequest(until), times=1)
    with submit("replay_dead_letters", *replay_arguments(flow)) as killed:
        try:
            deadline = time.monotonic() + 240
            while not ends.hits and killed.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            assert ends.hits, killed.communicate()[0]
            # One that is begun beside it takes over, with a checkpoint of its own.
            beside = replay(flow, "--checkpoint-location", f"{flow.checkpoint}-beside")
            assert beside.exit_code == 0, beside.output
            assert sorted(flow.values(flow.source)) == values(range(10))
        finally:
            os.killpg(killed.pid, signal.SIGKILL)
            killed.communicate()
            until.set()
    assert replay(flow).exit_code == 0
    assert sorted(flow.values(flow.source)) == values(range(10))
