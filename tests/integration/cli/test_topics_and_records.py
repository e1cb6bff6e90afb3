"""``spark-eos topics`` and ``consume``, and the topics of ``broker``."""

import json
from contextlib import closing

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from spark_eos._cli import main
from support.dead_letters import write_not_utf8
from support.error_classes import without_address
from support.flow import Flow


def _run(flow: Flow, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--bootstrap-servers", flow.bootstrap_servers])


def _records(flow: Flow, *arguments: str) -> list[dict[str, object]]:
    found = _run(flow, "consume", flow.target, *arguments)
    assert found.exit_code == 0, found.output
    return [json.loads(line) for line in found.output.splitlines()]


def test_committed_records_are_lines_of_json(flow: Flow) -> None:
    producer = Producer({**flow.kafka, "transactional.id": f"t-{flow.name}"})
    producer.init_transactions(20)
    for number, end in enumerate(("commit", "abort", "commit")):
        producer.begin_transaction()
        producer.produce(
            flow.target, f"ä{number}", b"\xff", partition=0, headers=[("h", b"x"), ("n", None)]
        )
        producer.flush()
        getattr(producer, f"{end}_transaction")(20)
    producer.begin_transaction()
    producer.produce(flow.target, "open", partition=0)
    producer.flush()
    try:
        found = _records(flow)
    finally:
        producer.abort_transaction(20)
    assert [one["value"] for one in found] == ["ä0", "ä2"]
    assert [one["key"] for one in found] == [{"base64": "/w=="}] * 2
    assert found[0]["headers"] == [["h", "x"], ["n", None]]
    assert (found[1]["partition"], found[1]["offset"]) == (0, 4)
    assert str(found[0]["timestamp"]).endswith("+00:00")
    assert _records(flow, "--limit", "1") == found[:1]


def test_nothing_of_a_record_reaches_the_terminal_as_a_command(flow: Flow) -> None:
    with closing(Producer(flow.kafka)) as producer:
        producer.produce(flow.target, "\x1b[2J\x9b2J\u202e\u061c\U000e0041")
        producer.flush()
    shown = _run(flow, "consume", flow.target).output
    assert shown.isascii()
    assert json.loads(shown)["value"] == "\x1b[2J\x9b2J\u202e\u061c\U000e0041"


def test_headers_that_can_not_be_read_are_null(flow: Flow) -> None:
    write_not_utf8(flow, flow.target, 0)
    assert {one["headers"] is None for one in _records(flow)} == {True}


def test_a_topic_that_does_not_exist(flow: Flow) -> None:
    found = _run(flow, "consume", "nowhere")
    assert found.exit_code == 1
    assert without_address(found.output) == "Error: topic 'nowhere' does not exist\n"


@pytest.mark.slow
def test_topics_with_what_is_in_them(flow: Flow) -> None:
    with closing(Producer(flow.kafka)) as producer:
        for partition in (0, 1, 1):
            producer.produce(flow.source, "value", partition=partition)
        producer.flush()
    found = {one["name"]: one for one in json.loads(_run(flow, "topics", "--json").output)}
    assert found[flow.source] == {
        "name": flow.source,
        "partitions": 2,
        "replicas": 1,
        "offsets": 3,
    }
    assert found[flow.target]["offsets"] == 0
    assert not [name for name in found if name.startswith("__")]
    assert flow.source in _run(flow, "topics").output


def test_topics_are_created(flow: Flow) -> None:
    one, other = f"one-{flow.name}", f"other-{flow.name}"
    create = ["topics", "--create", f"{one}:3", "--create", other, "--json"]
    found = {each["name"]: each for each in json.loads(_run(flow, *create).stdout)}
    assert (found[one]["partitions"], found[other]["partitions"]) == (3, 1)
    again = _run(flow, "topics", "--create", f"{one}:5", "--json")
    assert again.stderr == f"{one} already exists and stays unchanged\n"
    assert {each["name"]: each for each in json.loads(again.stdout)}[one] == found[one]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["a b"], "is not a valid topic name"),
        (["a:x"], "NAME or NAME:PARTITIONS"),
        (["a:0"], "from 1 to"),
        (["a:1", "a:2"], "given twice"),
    ],
)
def test_topics_that_a_broker_can_not_have(given: list[str], words: str) -> None:
    options = [part for name in given for part in ("--topic", name)]
    found = CliRunner().invoke(main, ["broker", *options])
    assert found.exit_code == 2
    assert words in found.output
