"""``spark-eos dead-letters``: lists, counts and shows them, and prints how to replay them."""

import shlex
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from kafka import KafkaProducer

from spark_eos._cli import main
from spark_eos._client.letter_headers import OTHER_FORMAT
from spark_eos._client.persisted import FORMAT
from support.dead_letters import (
    create_dead_letter_topic,
    headers_of,
    write_dead_letters,
    write_not_utf8,
)
from support.dead_letters import dead_letters as run
from support.flow import Flow


@pytest.fixture(autouse=True)
def _topic(flow: Flow) -> None:
    create_dead_letter_topic(flow)


def test_list_count_and_show(flow: Flow) -> None:
    write_dead_letters(flow, range(3), message="no order", group="g")
    connect: dict[str, Any] = {"connector.name": "bad\x1b[1m"}
    write_dead_letters(flow, [8], style="connect", **connect)
    write_dead_letters(flow, [7], commit=False)
    listed = run(flow, "list").stdout
    assert listed.count(f"{flow.source}:") == 4
    assert "no order" in listed
    assert "value 1" not in listed
    assert "\x1b[1m" not in listed
    assert run(flow, "list", "--group-id", "g", "--limit", "2").stdout.count(flow.source) == 2
    counted = run(flow, "count").stdout
    assert ["3", flow.source, "g", "error", "-"] in [line.split() for line in counted.splitlines()]
    assert "\n4 dead letters.\n" in counted
    assert "\n0 dead letters.\n" in run(flow, "count", "--reason", "too_large").stdout
    shown = run(flow, "show", "--partition", "1", "--offset", "0")
    assert "value: value 1" in shown.stdout
    assert "__dlq.errors.message: no order" in shown.stdout
    missing = run(flow, "show", "--partition", "1", "--offset", "99")
    assert (missing.exit_code, "no committed record at 1:99" in missing.output) == (1, True)


def _commands(flow: Flow, *more: str) -> list[str]:
    parts = run(flow, "count", *more).stdout.split("\n\n")
    return [part for part in parts if part.startswith("spark-submit ")]


def test_a_command_is_printed_for_each_source_topic(flow: Flow) -> None:
    write_dead_letters(flow, [0, 2, 4], group="a 'b' \\")
    write_dead_letters(flow, [6], topic="payments", omitted="all")
    write_dead_letters(flow, [8], cluster="another")
    own, payments = (shlex.split(c.replace("\\\n", " ")) for c in _commands(flow))
    assert own[own.index("--target") + 1 :][0] == flow.source
    assert payments[payments.index("--target") + 1 :][0] == "payments"
    counted = run(flow, "count").stdout
    assert "Replay the 3 dead letters of " in counted
    assert "\n  1 without a source topic in this cluster: " in counted
    assert "\n  1 without their complete record: " in counted
    # Another selection has offsets of its own, and secrets are not printed.
    chosen = ("--group-id", "a 'b' \\", "--reason", "error", "--kafka", "client.id=secret")
    (command,) = _commands(flow, *chosen)
    words = shlex.split(command.replace("\\\n", " "))
    where = r"dead_letter.reason = 'error' and dead_letter.group = 'a \'b\' \\'"
    assert words[words.index("--where") + 1] == where
    assert words[words.index("--group-id") + 1] != own[own.index("--group-id") + 1]
    assert "secret" not in command
    assert "--kafka-config" in words


@pytest.mark.slow
def test_commands_are_printed_for_so_many_topics(flow: Flow) -> None:
    for number in range(21):
        write_dead_letters(flow, [number], topic=f"forged-{number}")
    assert len(_commands(flow)) == 20
    assert "\n  1 more source topics: " in run(flow, "count").stdout


@pytest.mark.slow
def test_what_they_hold_moves_no_cursor_and_stops_nothing(flow: Flow) -> None:
    evil = "x\x1b[2J\r\x9b31m\u202e"
    names = ("topic", "offset", "group", "message", "reason", "exception")
    hostile: dict[str, Any] = dict.fromkeys(names, evil) | {"format": str(FORMAT)}
    topic = write_dead_letters(flow, [0], **hostile)
    producer = KafkaProducer(bootstrap_servers=flow.bootstrap_servers)
    headers = [
        (evil, evil.encode()),
        *((f"__dlq.errors.{k}", v.encode()) for k, v in hostile.items()),
    ]
    producer.send(topic, evil.encode(), evil.encode(), headers=headers, partition=0).get(60)
    producer.send(topic, b"\xff\x1b", b"\xff\x1b", partition=1).get(60)
    producer.close()
    places: list[dict[str, Any]] = [
        {"topic": ""},
        {"topic": "t" * 40_000},
        {"partition": "\u00b2"},
        {"partition": "4294967296"},
        {"partition": "-1"},
        {"format": "1"},
    ]
    for place in places:
        write_dead_letters(flow, [2], **place)
    commands = [("list",), ("count",), ("show", "--partition", "0", "--offset", "2")]
    commands += [("show", "--partition", "1", "--offset", "0")]
    for command in commands:
        shown = run(flow, *command)
        assert shown.exit_code == 0, (shown.output, shown.exception)
        assert [line for line in shown.output.split("\n") if not line.isprintable()] == []
    assert "9 dead letters." in run(flow, "count").stdout
    assert "\n1 dead letter.\n" in run(flow, "count", "--reason", OTHER_FORMAT).stdout
    assert _commands(flow) == []


@pytest.mark.slow
def test_a_header_name_that_is_not_utf8(flow: Flow) -> None:
    topic = write_dead_letters(flow, [0])
    headers = headers_of(flow.written(topic)[0])
    # Python runs a line in another way once it has run several times.
    more = [(name, text.encode()) for name, text in headers.items()]
    write_not_utf8(flow, topic, 0, more, number=20)
    write_dead_letters(flow, [2])
    offset = flow.written(topic)[1].offset()
    listed = run(flow, "list")
    assert listed.exit_code == 0, listed.output
    assert listed.stdout.count("not UTF-8") == 20
    assert "22 dead letters." in run(flow, "count").stdout
    shown = run(flow, "show", "--partition", "0", "--offset", str(offset)).stdout
    assert "headers: can't be read, since a name is not UTF-8" in shown
    assert "value: not UTF-8" in shown


def test_dead_letters_of_any_time_are_listed_and_shown(flow: Flow) -> None:
    topic = write_dead_letters(flow, [1], timestamp="86400000")
    # Like a dead letter of an earlier version: its timestamp is its record's, as its header says.
    write_dead_letters(flow, [3], timestamp="1003")
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


def test_a_topic_that_does_not_exist(flow: Flow) -> None:
    cluster = ("--bootstrap-servers", flow.bootstrap_servers)
    result = CliRunner().invoke(main, ["dead-letters", "count", *cluster, "--topic", "nowhere"])
    assert (result.exit_code, "'nowhere' does not exist" in result.output) == (1, True)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--topic", "nowhere", "--partition", "0"), "'nowhere' does not exist"),
        (("--partition", "99"), "no committed record at 99:0"),
    ],
    ids=["topic", "partition"],
)
def test_show_names_what_does_not_exist(flow: Flow, more: tuple[str, ...], words: str) -> None:
    result = run(flow, "show", "--offset", "0", *more)
    assert (result.exit_code, words in result.output) == (1, True)
