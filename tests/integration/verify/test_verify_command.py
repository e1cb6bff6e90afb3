"""``spark-eos verify``: its output, exit statuses and cleanup."""

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from spark_eos.errors import ConfigurationError
from spark_eos.verify import Kind
from spark_eos.verify.partitions import Partitions
from spark_eos.verify.questions import DUE, Records
from support import staging
from support.dead_letters import create_dead_letter_topic
from support.expecting import compared_with
from support.flow import Flow
from support.operating import COMMAND, assert_refused, invoked, without_layout
from support.planting import ALL, ENDS, Writer, fill, look, name_of, set_offsets
from support.queries import run_available

WIDTH = 100


def arguments(flow: Flow, *more: str) -> list[str]:
    topics = ["--input", flow.source, "--output", flow.target, "--group-id", flow.group_id]
    match = (
        []
        if {"--key", "--header", "--position-header"} & set(more)
        else ["--position-header", "src"]
    )
    where = ["--bootstrap-servers", flow.bootstrap_servers]
    return ["verify", *where, *topics, *match, "--timeout", "5", *more]


def run(flow: Flow, *more: str) -> Result:
    return invoked(arguments(flow, *more))


def _compare(flow: Flow, **more: Any) -> object:
    return compared_with(flow, **{"expect": "e.parquet", **more})


def test_anomalies_have_exit_status_1(flow: Flow) -> None:
    fill(flow)
    writer = Writer(flow)
    writer.begin([(1, 2)])
    writer.abort()
    writer.write([*ALL[:3], *ALL[:3]], {0: 3, 1: 3})
    result = run(flow, "--examples", "1")
    assert result.exit_code == 1
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[0] == ("ANOMALIES: 10 records in, 6 out as a read_committed consumer sees them")
    assert max(map(len, lines)) <= WIDTH
    table = {*map(without_layout, lines)}
    assert "duplicates 3 more visible outputs of an input than expected" in table
    assert "lost writes 3 processed input without visible output" in table
    assert "lost writes, 1 of 3 (never written 2, aborted 1):" in lines
    assert "duplicates, 1 of 3:" in lines
    assert f"  {flow.source}:0:0 at {flow.target}:0:0 and {flow.target}:0:3, " in result.stdout
    assert "not yet processed" in result.stdout

    document = json.loads(run(flow, "--json", "--examples", "1").stdout)
    assert document["verdict"] == "anomalies"
    assert (document["records_in"], document["records_out"]) == (10, 6)
    assert set(document["found"]) == {kind.value for kind in Kind}
    assert document["found"]["lost_writes"]["count"] == 3
    assert document["found"]["lost_writes"]["attempts"] == {"none": 2, "aborted": 1}
    assert document["found"]["duplicates"]["examples"] == [
        {
            "source": {"topic": flow.source, "partition": 0, "offset": 0},
            "name": None,
            "outputs": [
                {"topic": flow.target, "partition": 0, "offset": offset} for offset in (0, 3)
            ],
            "detail": "2 visible, 1 expected",
        }
    ]
    assert document["group"][1] == {
        "topic": flow.source,
        "partition": 1,
        "committed_offset": 3,
        "last_stable_offset": 5,
    }
    named = json.loads(run(flow, "--json", "--key").stdout)
    assert named["not_checked"] == ["reordered"]
    assert named["found"]["duplicates"]["examples"][0]["name"] == "0-0"


def test_what_is_sound_at_one_isolation_level_has_exit_status_0(flow: Flow) -> None:
    fill(flow)
    writer = Writer(flow)
    writer.write(ALL[:5], {0: 5})
    writer.begin(ALL[5:])
    writer.abort()
    result = run(flow, "--prefix", "spark-eos/")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("SOUND: 10 records in, 5 out as a read_committed consumer")
    assert max(map(len, result.stdout.splitlines())) <= WIDTH
    assert run(flow, "--complete").exit_code == 1
    assert run(flow, "--isolation-level", "read_uncommitted").exit_code == 1


def test_a_filter_is_not_reported_without_a_hint(flow: Flow) -> None:
    fill(flow)
    Writer(flow).write(ALL[1:4], ENDS)
    result = run(flow)
    assert result.exit_code == 1
    output = without_layout(result.stdout)
    assert "Note: 7 processed inputs were never written" in output
    assert "--at-most-once-each" in output
    result = run(flow, "--at-most-once-each")
    assert result.exit_code == 0
    assert result.stdout.startswith("SOUND: 10 records in, 3 out")
    output = without_layout(result.stdout)
    assert "Note: 7 processed inputs have no output, which --at-most-once-each allows" in output
    assert json.loads(run(flow, "--at-most-once-each", "--json").stdout)["verdict"] == "sound"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--input", "nothing"], "topic 'nothing' does not exist"),
        (["--group-id", "nobody"], "group 'nobody' has no committed offset in any input topic"),
        (["--key", "--header", "id"], "give exactly one of --position-header, --header and --key"),
        (["--position-header", ""], "the name of a header must not be empty"),
        (["--header", "nope"], "has a header 'nope' to match it by"),
        (["--header", "own"], " has no header 'own' to match it by"),
        (["--expect-header", "id"], "header 'id' is not a number of outputs: b'0-0'"),
        (["--kafka", "security.protocol=TLS"], "must be one of PLAINTEXT"),
        (["--kafka", "fetch.min.bytes=x"], "'fetch.min.bytes'] must be a whole number"),
        (["--kafka", "linger.ms=x"], "Invalid value"),
        (["--timeout", "1", "--bootstrap-servers", "127.0.0.1:1"], "within 1 s (--timeout)"),
    ],
)
def test_what_can_not_be_judged_has_exit_status_2(
    flow: Flow, more: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(flow, 1)
    Writer(flow).write([(0, 0), (1, 0)], {0: 1, 1: 1}, own="output")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert_refused(run(flow, *more), message)
    # Nor does it leave its database behind.
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_reader_that_has_gone_does_not_change_the_status(flow: Flow, more: list[str]) -> None:
    fill(flow)
    Writer(flow).write(ALL, ENDS)
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "wb") as nobody:
        done = subprocess.run(
            [COMMAND, *arguments(flow, *more)],
            stdout=nobody,
            stderr=subprocess.PIPE,
            timeout=240,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("matching", "what", "remedy"),
    [
        (["--position-header", "source"], "a header 'source'", "Let the query write it"),
        (["--header", "trace"], "a header 'trace'", "include_headers=True"),
        (["--key"], "a key", "--position-header or --header"),
    ],
)
def test_outputs_that_can_not_be_matched_have_exit_status_2(
    flow: Flow, matching: list[str], what: str, remedy: str
) -> None:
    """Like a sound query that keeps only its values; its dead letters have headers."""
    fill(flow, 10)
    dlq = create_dead_letter_topic(flow)
    producer = Producer(flow.kafka)
    for number in range(20):
        producer.produce(flow.target, b"v", partition=number % 2)
    producer.produce(dlq, b"v", b"k", 0, headers={"source": b"x:0:0", "trace": b"t"})
    assert producer.flush(60) == 0
    set_offsets(flow, {0: 10, 1: 10})
    result = run(flow, *matching, "--dead-letter-topic", dlq)
    assert_refused(result, f"none of the 20 records of {flow.target} has {what}")
    assert remedy in result.stderr
    # One that has it, and the rest is judged.
    headers: Any = {"source": f"{flow.source}:0:0".encode(), "trace": b"t"}
    producer.produce(flow.target, b"v", name_of((0, 0)), 0, headers=headers)
    assert producer.flush(60) == 0
    if matching != ["--header", "trace"]:
        assert run(flow, *matching).exit_code == 1


@pytest.mark.slow
def test_a_staged_querys_group_has_status_2_and_names_expect(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(map(staging.record, range(10)))
    run_available(spark_eos_session, flow, staging.repartitioned)
    result = run(flow)
    assert_refused(result, f"group '{flow.group_id}' belongs to a staged query")
    assert "--expect" in result.stderr


@pytest.mark.parametrize("option", ["--input", "--dead-letter-topic"])
def test_a_compacted_topic_can_not_be_judged(flow: Flow, option: str) -> None:
    """Also before a cleaner has removed anything."""
    fill(flow)
    Writer(flow).write(ALL, ENDS)
    compacted = f"compacted-{flow.name}"
    flow.broker.create_topic(compacted, 1, {"cleanup.policy": "compact,delete"})
    message = f"topic '{compacted}' is compacted (cleanup.policy=compact,delete)"
    assert_refused(run(flow, option, compacted), message)


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (look, {"inputs": []}),
        (look, {"inputs": "a-string"}),
        (look, {"inputs": ["same"], "outputs": ["same"]}),
        (look, {"isolation_level": "serializable"}),
        (_compare, {"outputs": []}),
        (_compare, {"outputs": "a-string"}),
        (_compare, {"outputs": ["same", "same"]}),
        (_compare, {"expect": "topic:same", "outputs": ["same"]}),
        (_compare, {"expect": "topic:*"}),
        *((each, {"timeout": 0}) for each in (look, _compare)),
        *((each, {"group_id": ""}) for each in (look, _compare)),
    ],
)
def test_arguments_are_checked_before_anything_is_asked(
    flow: Flow, function: Any, wrong: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError):
        function(flow, **{"kafka": {"bootstrap.servers": "127.0.0.1:1"}, **wrong})


def test_the_long_sort_can_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))

    def long_sort() -> None:
        with Records(Partitions({})) as records:
            records.add_inputs((number, number, 1, DUE) for number in range(400_000))
            timer.start()
            records.match({})
            time.sleep(1)
            pytest.fail("the sort was too short to be interrupted")

    with pytest.raises(KeyboardInterrupt):
        long_sort()
    timer.join()
    assert list(tmp_path.iterdir()) == []
