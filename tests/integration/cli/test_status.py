"""``spark-eos status`` on the real broker."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import kafka
import pytest
from confluent_kafka import Producer
from kafka.admin import KafkaAdminClient
from kafka.protocol.admin import DescribeProducersRequest, ListTransactionsRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from spark_eos._kafka.connection import CoordinatorType
from spark_eos._kafka.topic_partition import TopicPartition
from support import groups
from support.flow import Flow
from support.foreign_consumer import foreign_consumer
from support.members import deadline, started
from support.operating import document, one_open, run
from support.proxy import KafkaProxy, broker_that_is_away
from support.proxy_faults import Rewrite
from support.queries import until
from support.versions import OFFSET_COMMIT
from support.writing import rows, sent_requests, speak_at_most, transactions

EVIL = "[b]old[/b]\x1b[2J\x1b]0;owned\x07\r\n\x9b31m\u202e"
# ListOffsets, Metadata, OffsetFetch, FindCoordinator, DescribeGroups, ApiVersions,
# DescribeTransactions, ListTransactions, ConsumerGroupDescribe.
READING = {2, 3, 9, 10, 15, 18, 65, 66, 69}


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_group_with_members_and_lag(flow: Flow) -> None:
    flow.produce(range(1_500), partition=0)
    with started(flow) as membership, transactions(flow, membership) as writing:
        writing.add(rows(flow, 0, 0, 1))
        writing.commit()
        # The marker reaches the offsets a moment after the commit's answer.
        assert flow.committed()[0] == 2
        table = run("status", flow)
        found = document(flow)
        member = membership.assignment().member
    assert table.exit_code == 0
    assert found["group"]["state"] == "Stable"
    assert found["group"]["epoch"] == found["group"]["assignment_epoch"] > 0
    (owner,) = found["members"]
    assert (owner["instance_id"], owner["epoch"]) == ("spark-eos-0", member.epoch)
    assert owner["client_id"].rsplit("-", 1)[0] == f"spark-eos-{socket.gethostname()}"
    first, second = found["partitions"]
    assert first.pop("member_id") == owner["member_id"] == member.member_id
    assert owner["assigned"] == [{"topic": flow.source, "partition": p} for p in (0, 1)]
    assert first == {
        "topic": flow.source,
        "partition": 0,
        "committed_offset": 2,
        "last_stable_offset": 1_500,
        "high_watermark": 1_500,
        "lag": 1_498,
        "log_start_offset": 0,
        "deleted": 0,
    }
    assert (second["committed_offset"], second["lag"]) == (None, None)
    assert found["lag"] == 1_498
    assert found["open_transactions"] == []
    assert (found["transaction_version"], found["commits_by_topic_id"]) == (2, OFFSET_COMMIT == 6)
    assert found["problem"] is None

    assert found["held_back"] == []

    # The table has the same facts.
    lines = _lines(table.stdout)
    assert [flow.source, "0", "2", "1,500", "1,500", "1,498", "spark-eos-0"] in lines
    assert [flow.source, "1", "-", "0", "0", "-", "spark-eos-0"] in lines
    assert f"Group {flow.group_id}: Stable, group epoch" in table.stdout
    assert f"No open transactions of prefix spark-eos and group {flow.group_id}." in table.stdout
    how = "by topic id (KIP-1319)" if OFFSET_COMMIT == 6 else "by topic name"
    assert f"{how}: TxnOffsetCommit v{OFFSET_COMMIT}" in table.stdout
    for member in found["members"]:
        assert any({member["instance_id"], member["client_id"]} <= set(line) for line in lines)


def test_status_only_reads(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(flow) as membership, transactions(flow, membership) as writing:
        writing.add(rows(flow, 0, 0))
        writing._producer.records.flush(deadline())
        before = document(flow)
        assert len(before["open_transactions"]) == 1
        assert document(flow)["members"] == before["members"]
        assert document(flow)["group"] == before["group"]
        writing.commit()
    assert flow.values() == ["0/0"]
    # This process has no members now: their heartbeats would be among the requests.
    requests = sent_requests(monkeypatch)
    document(flow)
    sent = {request.api_key for request in requests}
    assert {9, 69} <= sent <= READING, sent


@pytest.mark.slow
def test_a_broker_that_is_away_is_named_and_all_else_is_shown(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    flow = proxied_flow
    target = ["--target", flow.target]
    with (
        one_open(flow) as name,
        broker_that_is_away(proxy, silent=True, leads=(flow.source, 0)) as port,
    ):
        table = run("status", flow, *target)
        result = run("status", flow, "--json", *target)
    assert (table.exit_code, result.exit_code) == (2, 2), result.output
    found = json.loads(result.stdout)
    assert found["silent_brokers"] == [f"2 (127.0.0.1:{port})"]
    first, second = found["partitions"]
    assert (first["committed_offset"], first["last_stable_offset"], first["lag"]) == (2, None, None)
    assert second["last_stable_offset"] == 0
    assert [one["transactional_id"] for one in found["open_transactions"]] == [name]
    assert [one["id"] for one in found["brokers"]] == [1]
    assert found["offset_commit_version"] == OFFSET_COMMIT
    words = " ".join(table.stdout.split())
    assert f"Broker 2 (127.0.0.1:{port}) does not answer" in words
    assert f"Group {flow.group_id}: Stable" in words


@pytest.mark.slow
def test_what_is_known_without_the_groups_coordinator(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    flow = proxied_flow

    def coordinate(_request: Any, answer: Any) -> None:
        answer.coordinators[0].node_id = 2

    with one_open(flow) as name, broker_that_is_away(proxy, silent=True) as port:
        proxy.on(
            FindCoordinatorRequest,
            Rewrite(coordinate),
            times=None,
            where=lambda request: request.key_type == CoordinatorType.GROUP,
        )
        result = run("status", flow)
        ended = run("abort", flow, "--yes")
    assert result.exit_code == 2, result.output
    words = " ".join(result.stdout.split())
    assert f"Group {flow.group_id}: unknown, its coordinator does not answer, lag unknown" in words
    assert f"Broker 2 (127.0.0.1:{port}) does not answer" in words
    assert "1 open transaction transactional id" in words
    assert name in words
    assert ended.exit_code == 2, ended.output
    assert "it is unknown whether a query is running" in " ".join(ended.stdout.split())
    assert ended.stdout.endswith("Ended 1 open transaction.\n")
    assert f"Error: broker 2 (127.0.0.1:{port}) does not answer, but may" in ended.stderr
    assert "whether there are other open transactions of prefix" in ended.stderr


@pytest.mark.slow
def test_a_transaction_whose_coordinator_does_not_answer(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    flow = proxied_flow
    unlisted = Rewrite(lambda _, answer: setattr(answer, "transaction_states", []))
    with one_open(flow), broker_that_is_away(proxy, silent=True):
        proxy.on(ListTransactionsRequest, unlisted, times=None)
        aborted = run("abort", flow, "--yes")
        table = run("status", flow, "--target", flow.target)
        found = json.loads(run("status", flow, "--target", flow.target, "--json").stdout)
    assert (aborted.exit_code, aborted.stdout) == (2, "")
    unknown = f"whether there are open transactions of prefix spark-eos and group {flow.group_id}"
    assert f"it is unknown {unknown}" in aborted.stderr
    assert table.exit_code == 2
    words = " ".join(table.stdout.split())
    assert f"It is unknown {unknown}." in words
    assert "No open transactions" not in words
    assert "Held back by other clients' open transactions, or by unknown ones: nobody" in words
    (held,) = found["held_back"]
    assert (held["topic"], held["transaction"]) == (flow.target, None)
    assert held["producer_id"] is not None


@pytest.mark.parametrize(
    ("message", "field"),
    [
        # The first answer is about the query's own transactions.
        pytest.param(ListTransactionsRequest, "transaction_states", id="begun-since"),
        pytest.param(DescribeProducersRequest, "topics.partitions.active_producers", id="over"),
    ],
)
def test_a_running_query_does_not_hold_itself_back(
    proxied_flow: Flow, proxy: KafkaProxy, message: Any, field: str
) -> None:
    def empty(_request: Any, answer: Any) -> None:
        *path, last = field.split(".")
        found = [answer]
        for name in path:
            found = [part for one in found for part in getattr(one, name)]
        for one in found:
            setattr(one, last, [])

    with one_open(proxied_flow):
        rule = proxy.on(message, Rewrite(empty), times=1)
        assert document(proxied_flow, "--target", proxied_flow.target)["held_back"] == []
        assert len(rule.hits) == 1


def test_records_that_retention_deletes_unread(flow: Flow) -> None:
    flow.produce(range(20), partition=0)
    flow.produce(range(20), partition=1)
    groups.set_offsets(
        flow.bootstrap_servers,
        flow.group_id,
        {TopicPartition(flow.source, 0): 3, TopicPartition(flow.source, 1): 5},
    )
    assert "Retention" not in run("status", flow).stdout
    with closing(KafkaAdminClient(bootstrap_servers=flow.bootstrap_servers)) as admin:
        admin.delete_records({kafka.TopicPartition(flow.source, index): 5 for index in (0, 1)})
    found = document(flow)["partitions"]
    assert [(one["log_start_offset"], one["deleted"], one["lag"]) for one in found] == [
        (5, 2, 17),
        (5, 0, 15),
    ]
    words = " ".join(run("status", flow).stdout.split())
    deleted = f"2 offsets of its lag have been deleted: {flow.source} 0 (2)"
    assert f"Retention is overtaking the query: {deleted}" in words


@pytest.mark.slow
def test_a_group_of_the_classic_protocol(flow: Flow) -> None:
    """A client that has chosen its own id: the id is shown without markup or control characters."""
    flow.produce(range(3), partition=0)
    with foreign_consumer(flow, "classic", client_id=EVIL, offsets={0: 1}):
        found = document(flow)
        table = run("status", flow).stdout
    assert (found["group"]["state"], found["group"]["epoch"]) == ("Stable", None)
    (member,) = found["members"]
    assert (member["client_id"], member["assigned"]) == (EVIL, None)
    assert found["lag"] == 2
    assert "[b]old[/b]" in table
    assert [line for line in table.splitlines() if not line.isprintable()] == []
    assert "classic protocol: no spark-eos query uses this group" in table


def test_a_group_that_does_not_exist_is_one_line(flow: Flow) -> None:
    for more in ([], ["--json"]):
        result = run("status", flow, *more)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"Error: group '{flow.group_id}' does not exist on ")
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("message", "greatest"), [(FindCoordinatorRequest, 3), (ListTransactionsRequest, -1)]
)
def test_brokers_before_kafka_3(
    flow: Flow, message: Any, greatest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    speak_at_most(monkeypatch, {message.API_KEY: greatest})
    result = run("status", flow)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message.__name__.removesuffix("Request") in result.stderr
    assert "does not answer" not in result.stderr


def test_a_target_that_does_not_exist_is_named(flow: Flow) -> None:
    result = run("status", flow, "--target", f"{flow.target}-typo")
    assert result.exit_code != 0
    assert f"topic '{flow.target}-typo' does not exist" in result.stderr


@contextmanager
def _foreign_transaction(servers: str, topic: str, name: str, partition: int = 1) -> Iterator[None]:
    """Another client's transaction, with one record."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"foreign", partition=partition)
    assert producer.flush(60) == 0
    yield
    producer.abort_transaction()


def test_a_foreign_transaction_that_holds_up_readers_is_named(flow: Flow) -> None:
    flow.produce(range(4))
    servers = flow.bootstrap_servers
    with one_open(flow) as own:
        # It holds back partitions itself.
        (transaction,) = document(flow)["open_transactions"]
        (taken,) = [p["partition"] for p in transaction["partitions"] if p["topic"] == flow.target]
        for topic in (flow.source, flow.target):
            # The markers of the one before are written a moment after its end is answered.
            until(
                lambda: document(flow, "--target", flow.target)["held_back"] == [],
                lambda: "the end of other transactions",
            )
            with _foreign_transaction(servers, topic, f"other-{topic}", 1 - taken):
                (held,) = document(flow, "--target", flow.target)["held_back"]
                table = run("status", flow, "--target", flow.target).stdout
            assert (held["topic"], held["partition"]) == (topic, 1 - taken)
            assert held["last_stable_offset"] == held["high_watermark"] - 1
            assert held["transaction"]["transactional_id"] == f"other-{topic}" != own
            assert held["transaction"]["producer_id"] == held["producer_id"]
            assert held["transaction"]["age_seconds"] < 60
            assert "Held back by other clients' open transactions" in table
            assert any(f"other-{topic}" in line for line in table.splitlines())
        # Without the option the target is not known here.
        with _foreign_transaction(servers, flow.target, "other"):
            assert document(flow)["held_back"] == []


def test_without_read_it_says_that_something_holds_up_readers(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    def refuse(_request: Any, answer: Any) -> None:
        for partition in (p for t in answer.topics for p in t.partitions):
            partition.error_code, partition.active_producers = 29, []

    flow = proxied_flow
    with one_open(flow), _foreign_transaction(flow.broker.bootstrap_servers, flow.source, "other"):
        proxy.on(DescribeProducersRequest, Rewrite(refuse), times=None)
        (held,) = document(flow)["held_back"]
        assert (held["producer_id"], held["transaction"], held["may_read"]) == (None, None, False)
        assert f"you need Read on: {flow.source}" in run("status", flow).stdout
