"""``spark-eos dead-letters``: list, count, show and replay."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import (
    EndTxnRequest,
    InitProducerIdRequest,
)

from spark_eos.admin.dead_letter_replay import DeadLetterReplay
from spark_eos.admin.dead_letter_topic import DeadLetterTopic
from spark_eos.cli import main
from spark_eos.client.error_codes import Code
from spark_eos.client.settings import ClientSettings
from spark_eos.kafka.protocol import TxnOffsetCommitRequest
from spark_eos.testing import EmbeddedKafka
from support.dead_letters import headers_of, letter_topic
from support.flow import Flow
from support.proxy import KafkaProxy
from support.proxy_faults import Fault, Rewrite


def write_letters(
    flow: Flow,
    numbers: Iterable[int],
    *,
    style: str = "dlq",
    commit: bool = True,
    **more: Any,
) -> str:
    """Dead letters of the flow's source, as a query writes them; letter n is in partition n % 2."""
    topic = f"dlq-{flow.name}"
    prefix = f"__{style}.errors."
    producer = Producer({**flow.kafka, "transactional.id": f"t-{flow.name}"})
    producer.init_transactions(20)
    producer.begin_transaction()
    for n in numbers:
        told = {"topic": flow.source, "partition": str(n % 2), "offset": str(n), "reason": "error"}
        headers = [(prefix + name, text.encode()) for name, text in (told | more).items()]
        producer.produce(
            topic,
            b"value %d" % n,
            b"k",
            n % 2,
            timestamp=1_000 + n,
            headers=[("own", b"h"), *headers],
        )
    producer.flush(20)
    if commit:
        producer.commit_transaction(20)
    else:
        producer.abort_transaction(20)
    # The command reads up to the last stable offset, which follows the transaction's end.
    flow.written(topic)
    return topic


def run(flow: Flow, command: str, *more: str) -> Result:
    """Runs a command about the flow's dead-letter topic."""
    cluster = ("--bootstrap-servers", flow.bootstrap_servers, "--topic", f"dlq-{flow.name}")
    return CliRunner().invoke(main, ["dead-letters", command, *cluster, *more])


@pytest.fixture(autouse=True)
def _topic(flow: Flow) -> None:
    letter_topic(flow)


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
    assert "4 dead letters." in counted
    assert "1 dead letter." not in run(flow, "count", "--reason", "too_large").stdout
    shown = run(flow, "show", "--partition", "1", "--offset", "0")
    assert "value: value 1" in shown.stdout
    assert "__dlq.errors.message: no order" in shown.stdout
    missing = run(flow, "show", "--partition", "1", "--offset", "99")
    assert (missing.exit_code, "no committed record at 1:99" in missing.output) == (1, True)


def test_a_replay_writes_each_letter_once(flow: Flow) -> None:
    write_letters(flow, range(10))
    dry = run(flow, "replay", "--from-beginning", "--dry-run")
    assert f"Would replay 10 dead letters: 10 to {flow.source}." in dry.stdout
    assert flow.written(flow.source) == []
    assert (
        "Replayed 4 dead letters" in run(flow, "replay", "--from-beginning", "--limit", "4").stdout
    )
    assert len(flow.written(flow.source)) == 4
    assert "Replayed 6 dead letters" in run(flow, "replay").stdout
    assert "Replayed 0 dead letters." in run(flow, "replay").stdout
    found = flow.written(flow.source)
    assert [(m.partition(), m.value(), m.key()) for m in found] == [
        (n % 2, b"value %d" % n, b"k") for n in (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
    ]
    assert [headers_of(m) for m in found] == [{"own": "h"}] * 10
    assert found[1].timestamp()[1] == 1_002
    write_letters(flow, [10, 11])
    assert "Replayed 2 dead letters" in run(flow, "replay", "--to", flow.target).stdout
    assert sorted(flow.values()) == ["value 10", "value 11"]


def test_a_replay_that_ends_in_the_middle_is_continued(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_letters(flow, range(10))
    monkeypatch.setattr("spark_eos.admin.dead_letter_replay._BATCH", 3)
    topic = DeadLetterTopic(ClientSettings(flow.kafka), f"dlq-{flow.name}", 20)
    replay = DeadLetterReplay(topic, from_beginning=True)
    write, batches = DeadLetterReplay._write, []

    def failing(*arguments: object) -> None:
        batches.append(arguments)
        if len(batches) == 3:
            raise RuntimeError("killed")
        write(replay, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(replay, "_write", failing)
    with pytest.raises(RuntimeError, match="killed"):
        replay.run()
    assert len(flow.written(flow.source)) == 6
    assert "Replayed 4 dead letters" in run(flow, "replay").stdout
    assert sorted(flow.values(flow.source)) == [f"value {n}" for n in range(10)]


def test_letters_that_can_not_be_replayed(flow: Flow) -> None:
    write_letters(flow, [0])
    write_letters(flow, [2], omitted="value of 9 bytes")
    write_letters(flow, [4])
    failed = run(flow, "replay", "--from-beginning")
    assert failed.exit_code == 1
    assert "offset 2 was too large to keep its value" in failed.output
    assert flow.values(flow.source) == ["value 0"]
    rest = run(flow, "replay", "--skip-omitted").stdout
    assert "Replayed 1 dead letter:" in rest
    assert "Passed over 1 without a value." in rest
    assert flow.values(flow.source) == ["value 0", "value 4"]


def test_letters_without_a_source_need_a_topic(flow: Flow) -> None:
    write_letters(flow, [0], topic="")
    failed = run(flow, "replay", "--from-beginning")
    assert (failed.exit_code, "(--to)" in failed.output) == (1, True)
    assert "Replayed 1 dead letter" in run(flow, "replay", "--to", flow.target).stdout
    assert flow.values() == ["value 0"]


def test_nothing_is_replayed_where_it_is_not_known_how_far_it_was(flow: Flow) -> None:
    topic = write_letters(flow, [1, 3])
    for more in ([], ["--dry-run"]):
        refused = run(flow, "replay", *more)
        assert refused.exit_code == 1, refused.output
        assert f"how far 1 of 3 partitions were replayed is not known ({topic}-1)" in refused.output
        assert "either this is the first replay" in refused.output
    assert flow.values(flow.source) == []
    assert "Replayed 2 dead" in run(flow, "replay", "--from-beginning").stdout
    # Partitions that had no letters have an offset, too.
    write_letters(flow, [2])
    assert "Replayed 1 dead" in run(flow, "replay").stdout
    flow.broker.add_partitions(topic, 4)
    producer = Producer(flow.kafka)
    headers: Any = [*headers_of(flow.written(topic)[0]).items()]
    producer.produce(topic, b"value 5", b"k", 3, headers=headers)
    assert producer.flush(20) == 0
    refused = run(flow, "replay")
    assert f"1 of 4 partitions were replayed is not known ({topic}-3)" in refused.output
    # Begins anew in that partition alone.
    assert "Replayed 1 dead" in run(flow, "replay", "--from-beginning").stdout
    assert sorted(flow.values(flow.source)) == ["value 1", "value 2", "value 3", "value 5"]
    # As if they had expired.
    group = f"spark-eos-replay-{topic}"
    admin = AdminClient(flow.kafka)
    admin.delete_consumer_groups([group])[group].result(20)
    refused = run(flow, "replay")
    assert "offsets of group 'spark-eos-replay-" in refused.output
    assert "3 of 4 partitions" in refused.output
    assert len(flow.values(flow.source)) == 4


def test_each_replay_renews_all_offsets(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    flow = proxied_flow
    letter_topic(flow)
    write_letters(flow, [0])
    assert "Replayed 1 " in run(flow, "replay", "--from-beginning").stdout
    commits = proxy.on(TxnOffsetCommitRequest, Fault(), times=None)
    assert "Replayed 0 " in run(flow, "replay").stdout
    (commit,) = (request.message() for request in commits.hits)
    (topic,) = commit.topics
    found = [(p.partition_index, p.committed_offset) for p in topic.partitions]
    assert sorted(found) == [(0, 1), (1, 0), (2, 0)]


def test_a_replay_right_after_brokers_have_moved_the_coordinators(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    flow = proxied_flow
    letter_topic(flow)
    write_letters(flow, range(4))

    def unavailable(_request: Any, answer: Any) -> None:
        for coordinator in answer.coordinators or ():
            coordinator.error_code = Code.COORDINATOR_NOT_AVAILABLE
        answer.error_code = Code.COORDINATOR_NOT_AVAILABLE

    def moved(_request: Any, answer: Any) -> None:
        answer.error_code = Code.NOT_COORDINATOR

    def offsets_moved(_request: Any, answer: Any) -> None:
        answer.groups[0].error_code = Code.NOT_COORDINATOR

    def commit_moved(_request: Any, answer: Any) -> None:
        for topic in answer.topics:
            for partition in topic.partitions:
                partition.error_code = Code.NOT_COORDINATOR

    rules = [
        proxy.on(FindCoordinatorRequest, Rewrite(unavailable), times=4),
        proxy.on(InitProducerIdRequest, Rewrite(moved), times=2),
        proxy.on(OffsetFetchRequest, Rewrite(offsets_moved), times=2),
        proxy.on(TxnOffsetCommitRequest, Rewrite(commit_moved), times=2),
        proxy.on(EndTxnRequest, Rewrite(moved), times=1),
    ]
    result = run(flow, "replay", "--from-beginning")
    assert "Replayed 4 dead letters" in result.output
    assert [len(rule.hits) for rule in rules] == [4, 2, 2, 2, 1]
    assert sorted(flow.values(flow.source)) == [f"value {n}" for n in range(4)]


@pytest.mark.parametrize("named", [False, True])
def test_a_replay_creates_no_topic(tmp_path: Path, *, named: bool) -> None:
    with EmbeddedKafka(properties={"auto.create.topics.enable": "true"}) as broker:
        flow = Flow(broker, str(tmp_path / "checkpoint"), str(tmp_path / "workers"))
        letter_topic(flow)
        write_letters(flow, [0, 2])
        write_letters(flow, [4], topic="gone")
        more = ["--to", "gone"] if named else []
        # Also right after a broker's start: there is no coordinator yet.
        failed = run(flow, "replay", "--from-beginning", *more)
        assert (failed.exit_code, "topic 'gone', which" in failed.output) == (1, True), (
            failed.output
        )
        assert len(flow.values(flow.source)) == (0 if named else 2)
        assert "gone" not in AdminClient(flow.kafka).list_topics(timeout=20).topics


def test_a_topic_that_does_not_exist(flow: Flow) -> None:
    cluster = ("--bootstrap-servers", flow.bootstrap_servers)
    result = CliRunner().invoke(main, ["dead-letters", "count", *cluster, "--topic", "nowhere"])
    assert (result.exit_code, "'nowhere' does not exist" in result.output) == (1, True)
