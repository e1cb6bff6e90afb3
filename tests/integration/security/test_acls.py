"""Least privilege, on a broker with StandardAuthorizer; see docs/acls.md."""

import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from kafka.protocol.admin import ListTransactionsRequest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos._cli.migration import set_offsets
from spark_eos._client.error_codes import Code, code_name
from spark_eos._client.settings import ClientSettings
from spark_eos._exactly_once import offsets as group_offsets
from spark_eos._exactly_once.transaction import TransactionWriter
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.heartbeats import heartbeat
from spark_eos._kafka.offsets import commit_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactional_ids import driver_id, id_prefix
from spark_eos._kafka.transactions import (
    MemberIdentity,
    ProducerIdAndEpoch,
    fence_producer,
    txn_offset_commit,
)
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos.acls import Acl, Operation, read_group, transactional_ids
from spark_eos.errors import AuthorizationError
from support.dead_letters import create_dead_letter_topic
from support.flow import Flow
from support.granting import Guarded
from support.members import deadline, started
from support.operating import run
from support.pages import page
from support.proxy import KafkaProxy
from support.proxy_faults import Rewrite
from support.queries import relay, run_available, until
from support.sinks import arguments
from support.writing import rows, transactions


def _start(spark: SparkSession, flow: Guarded, **options: Any) -> None:
    """What happens before a query is started."""
    sink = ExactlyOnceSink(**arguments(**{**flow.options(), **options}))
    sink.write(relay(sink.read(spark, subscribe=flow.source)))


# With exactly what the command prints ------------------------------------------------------------


@pytest.mark.slow
def test_with_the_acls_printed_open_transactions_end_at_once(
    flow: Guarded, spark_eos_session: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    flow.grant(*flow.commands())
    flow.produce(range(4))
    with _left_open(flow):
        (report,) = run_available(spark_eos_session, flow)
    assert report.milliseconds["start"] < 5_000
    assert sorted(map(int, flow.values())) == list(range(4))
    assert "not ended at once" not in caplog.text


@contextmanager
def _left_open(flow: Guarded, **options: Any) -> Iterator[TransactionWriter]:
    """A transaction of the principal with an offset, from a worker without a driver."""
    with started(flow) as membership, transactions(flow, membership, **options) as writing:
        writing.add(rows(flow, 0, 0))
        writing._producer.records.flush(deadline())
        writing._send_offsets(deadline())
        membership.abandon()
        assert len(flow.open_transactions()) == 1
        yield writing


# With one of them missing -------------------------------------------------------------------------

_QUERY = {"source": 29, "target": 29, "group": 30, "transactional ids": 53}


def _needed(flow: Guarded, what: str) -> tuple[str, str]:
    """A description of one of the ACLs, and the command that grants it."""
    words = (
        f"Read on topic '{flow.source}'",
        f"Write on topic '{flow.target}'",
        f"Read on group '{flow.group_id}'",
        f"Write on transactional ids that begin with 'spark-eos/{flow.group_id}/'",
    )
    index = list(_QUERY).index(what)
    return words[index], flow.commands()[index]


def _less(command: str) -> str:
    """The command, with only the right to describe."""
    return re.sub("--operation (Read|Write)", "--operation Describe", command)


@pytest.mark.parametrize("left", ["nothing", "Describe"])
@pytest.mark.parametrize(("missing", "code"), _QUERY.items())
def test_a_query_does_not_start_without(
    missing: str, code: int, left: str, flow: Guarded, spark_eos_session: SparkSession
) -> None:
    words, command = _needed(flow, missing)
    flow.grant(*(line for line in flow.commands() if line != command))
    if left == "Describe":
        flow.grant(_less(command))
    with pytest.raises(AuthorizationError) as refusal:
        _start(spark_eos_session, flow)
    assert refusal.value.code == code
    assert refusal.value.text == (
        f"{code_name(code)}: {flow.principal} lacks {words}. To grant: {command}"
    )
    assert str(refusal.value).startswith(_documented(flow, "error at the start", missing))
    flow.grant(command)
    _start(spark_eos_session, flow)


def test_all_that_is_missing_is_named_at_once(
    flow: Guarded, spark_eos_session: SparkSession
) -> None:
    with pytest.raises(AuthorizationError) as refusal:
        _start(spark_eos_session, flow)
    *needed, configs = flow.commands()
    assert "DescribeConfigs" in configs
    assert refusal.value.text.endswith("; ".join(needed))
    assert len(refusal.value.missing) == 4


def test_a_denied_coordinator_lookup_names_what_is_missing(flow: Guarded) -> None:
    # As a worker that comes to a query whose right was taken away: it has looked up nothing yet.
    group, at, nobody = (
        flow.group_id,
        {TopicPartition(flow.source, 0): 1},
        MemberIdentity("m", 1, "m"),
    )
    ids: dict[str, uuid.UUID | None] = {flow.source: None}
    producer = ProducerIdAndEpoch(driver_id("spark-eos", group), 1, 1)
    read, write = (
        read_group(group),
        transactional_ids(id_prefix("spark-eos", group), Operation.WRITE),
    )
    requests: list[tuple[Acl, Callable[[Connections], object]]] = [
        (read, lambda to: heartbeat(to, group, nobody, deadline())),
        (read, lambda to: commit_offsets(to, group, nobody, at, ids, deadline())),
        (
            read,
            lambda to: txn_offset_commit(
                to, group, producer, nobody, at, ids, deadline(), lambda: None
            ),
        ),
        (write, lambda to: fence_producer(to, producer.transactional_id, 1_000, deadline())),
    ]
    for needed, request in requests:
        with closing(Connections(ClientSettings(flow.kafka))) as connections:
            with pytest.raises(AuthorizationError, match=r"finding the .* coordinator") as refusal:
                request(connections)
            assert refusal.value.missing == (needed,)


@pytest.mark.slow
def test_a_topic_that_only_a_row_names(flow: Guarded, spark_eos_session: SparkSession) -> None:
    flow.produce(["1"])
    source, target, *others = flow.commands()
    flow.grant(source, *others)

    def to_target(frame: DataFrame) -> DataFrame:
        return relay(frame).withColumn("topic", F.lit(flow.target))

    with pytest.raises(StreamingQueryException) as failure:
        run_available(spark_eos_session, flow, to_target, topic=None)
    reason = str(failure.value)
    assert f"lacks Write on topic '{flow.target}'. To grant: {target}" in reason
    assert flow.written() == []
    assert flow.committed() == {0: 0, 1: 0}
    assert flow.open_transactions() == []


@pytest.mark.parametrize(
    "missing", ["source", *(pytest.param(what, marks=pytest.mark.slow) for what in [*_QUERY][1:])]
)
def test_an_acl_that_is_taken_away_from_a_running_query(
    missing: str, flow: Guarded, spark_eos_session: SparkSession
) -> None:
    flow.grant(*flow.commands())
    _words, command = _needed(flow, missing)
    flow.produce(range(10))

    def taken_away(report: BatchReport) -> None:
        if report.batch_id == 0:
            flow.revoke(command)
            flow.produce(range(10, 20))

    sink = ExactlyOnceSink(**flow.options(), on_batch=taken_away)
    frame = sink.read(spark_eos_session, subscribe=flow.source)
    query = sink.write(relay(frame)).trigger(processingTime="100 milliseconds").start()
    try:
        with pytest.raises(StreamingQueryException) as failure:
            query.awaitTermination(60)
    finally:
        query.stop()
        sink.close()
    # The consumer of Spark's source reports the missing right in its own words.
    expected = _documented(flow, "error of the running query", missing)
    assert expected in str(failure.value)
    assert (command in str(failure.value)) == (missing != "source")
    assert sorted(map(int, flow.values())) == list(range(10))


@pytest.mark.slow
def test_the_groups_of_sparks_deprecated_offset_fetching(
    flow: Guarded, spark_eos_session: SparkSession
) -> None:
    flow.grant(*flow.commands())
    flow.produce(range(4))
    setting = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
    spark_eos_session.conf.set(setting, "true")
    try:
        with pytest.raises(StreamingQueryException, match="Not authorized to access group: spark-"):
            run_available(spark_eos_session, flow)
        flow.grant(*flow.commands("--for", "deprecated-offset-fetching"))
        run_available(spark_eos_session, flow)
    finally:
        spark_eos_session.conf.unset(setting)
    assert sorted(map(int, flow.values())) == list(range(4))


def test_without_describe_configs_a_query_continues_and_warns(
    flow: Guarded, spark_eos_session: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    dlq = create_dead_letter_topic(flow)
    lines = flow.commands("--dead-letter-topic", dlq)
    missing = [line for line in lines if "DescribeConfigs" in line]
    flow.grant(*(line for line in lines if line not in missing))
    flow.produce(range(10))
    (report,) = run_available(spark_eos_session, flow, dead_letter_topic=dlq)
    assert (report.rows_written, report.attempts) == (10, 1)
    (warning,) = [m for r in caplog.records if "DescribeConfigs" in (m := r.getMessage())]
    assert warning.count(f"{flow.principal} lacks DescribeConfigs on topic ") == 1
    assert all(line in warning for line in missing)


def test_without_describe_configs_a_broker_refusal_ends_a_query(flow: Guarded) -> None:
    *needed, configs = flow.commands()
    flow.grant(*needed)
    compacted = f"compacted-{flow.name}"
    flow.broker.create_topic(compacted, 1, {"cleanup.policy": "compact"})
    flow.grant(*(line.replace(flow.target, compacted) for line in needed))
    blamed = rf"source {flow.source}-0 offset 0, for topic '{compacted}'"
    with started(flow) as membership, transactions(flow, membership, topic=compacted) as writing:
        writing.add(rows(flow, 0, 0))
        with pytest.raises(TransactionError, match=blamed) as refusal:
            writing.commit()
    assert not refusal.value.again
    assert configs.replace(flow.target, compacted) in str(refusal.value)
    assert flow.values(compacted) == []


# What can't be found or ended ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("end", ["aborted", "committed"])
def test_a_query_waits_for_a_hidden_transaction_with_one_warning(
    end: str,
    flow: Guarded,
    spark_eos_session: SparkSession,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_offsets, "_SETTLING", 0.2)
    flow.grant(*flow.commands())
    flow.produce(range(4))
    # Another principal's, which may see it.
    other = ClientSettings({"bootstrap.servers": flow.bootstrap_servers})

    def warnings() -> list[str]:
        return [r.getMessage() for r in caplog.records if "not ended at once" in r.getMessage()]

    def end_it(writing: TransactionWriter) -> None:
        until(warnings, lambda: "the warning")
        if end == "committed":
            # By a worker that was cut off from its driver when its offsets had gone through.
            writing._producer.commit(deadline())
        else:
            # By the brokers, at its timeout.
            writing.abort()

    with _left_open(flow, client=other) as writing, ThreadPoolExecutor() as thread:
        flow.deny_describing(*flow.open_transactions())
        ended = thread.submit(end_it, writing)
        run_available(spark_eos_session, flow)
        ended.result()
    # Offset 0 of partition 0 is the one that the transaction holds.
    written = {"aborted": ["0", "1", "2", "3"], "committed": ["0/0", "1", "2", "3"]}
    assert sorted(flow.values()) == written[end]
    (warning,) = warnings()
    assert f"group {flow.group_id}: an open transaction that the query can't see" in warning
    assert f"Write on transactional ids that begin with 'spark-eos/{flow.group_id}/'" in warning


def test_transactions_that_may_not_be_listed_are_a_warning(
    proxied_flow: Flow,
    proxy: KafkaProxy,
    spark_eos_session: SparkSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(_request: Any, answer: Any) -> None:
        answer.error_code = Code.CLUSTER_AUTHORIZATION_FAILED
        answer.transaction_states = []

    refused = proxy.on(ListTransactionsRequest, Rewrite(refuse), times=None)
    proxied_flow.produce(range(4))
    run_available(spark_eos_session, proxied_flow)
    assert refused.hits
    assert sorted(map(int, proxied_flow.values())) == list(range(4))
    (warning,) = [record for record in caplog.records if "not ended at once" in record.message]
    assert "listing open transactions: 31 CLUSTER_AUTHORIZATION_FAILED" in warning.message


# Commands about a query ---------------------------------------------------------------------------


def _verify(flow: Guarded) -> Result:
    topics = ["--input", flow.source, "--output", flow.target, "--key", "--timeout", "5"]
    prefix = f"spark-eos/{flow.group_id}/"
    return run("verify", flow, *topics, "--prefix", prefix)


def test_status_needs_what_is_printed_for_it(flow: Guarded) -> None:
    with started(flow):
        topic, *others = _granted(flow, "status")
        assert run("status", flow).exit_code == 0
        for line in others:
            with flow.without(line):
                result = run("status", flow)
            assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
            assert f"{flow.principal} lacks Describe on " in result.stderr
            assert line in result.stderr
        with flow.without(topic):
            assert "lacks Describe on a topic of its members" in run("status", flow).stderr


def test_status_of_a_target_needs_describe_there(flow: Guarded) -> None:
    with started(flow):
        _granted(flow, "status")
        refused = run("status", flow, "--target", flow.target)
        assert refused.exit_code == 1
        assert f"lacks Describe on topic '{flow.target}'" in refused.stderr
        flow.grant(_less(_needed(flow, "target")[1]))
        assert run("status", flow, "--target", flow.target).exit_code == 0


def test_setting_offsets_names_what_is_missing(flow: Guarded) -> None:
    at: dict[TopicPartition, int] = {TopicPartition(flow.source, 0): 1}
    ids: dict[str, uuid.UUID | None] = {flow.source: None}
    _granted(flow, "status")
    with closing(Connections(ClientSettings(flow.kafka))) as connections:
        for what in ("group", "source"):
            words, command = _needed(flow, what)
            with pytest.raises(AuthorizationError) as refusal:
                set_offsets(connections, flow.group_id, at, ids, deadline(), {})
            assert refusal.value.text.endswith(f" lacks {words}. To grant: {command}")
            flow.grant(command)
        set_offsets(connections, flow.group_id, at, ids, deadline(), {})
    assert flow.committed() == {0: 1}


def test_abort_needs_what_is_printed_for_it(flow: Guarded) -> None:
    flow.grant(*flow.commands())
    with _left_open(flow):
        for line in flow.commands():
            flow.revoke(line)
        topic, group, ids = _granted(flow, "abort")
        with flow.without(topic):
            assert "lacks Describe on a topic of its members" in run("abort", flow).stderr
        with flow.without(group):
            assert group in run("abort", flow).stderr
        with flow.without(ids):
            assert _less(ids) in run("abort", flow).stderr
            flow.grant(_less(ids))
            assert ids in run("abort", flow, "--yes").stderr
        assert len(flow.open_transactions()) == 1
        assert run("abort", flow, "--yes").exit_code == 0
    assert flow.open_transactions() == []


@pytest.mark.slow
def test_verify_needs_what_is_printed_for_it(
    flow: Guarded, spark_eos_session: SparkSession
) -> None:
    flow.grant(*flow.commands())
    flow.produce(range(4), key=lambda n: b"%d" % n)
    run_available(spark_eos_session, flow)
    for line in flow.commands():
        flow.revoke(line)
    lines = _granted(flow, "verify")
    assert _verify(flow).exit_code == 0
    expected = (
        (f"topic '{flow.source}'", "29 TOPIC_AUTHORIZATION_FAILED"),
        (f"topic '{flow.target}'", "29 TOPIC_AUTHORIZATION_FAILED"),
        (f"group '{flow.group_id}'", "30 GROUP_AUTHORIZATION_FAILED"),
        (f"ids that begin with 'spark-eos/{flow.group_id}/'", "53 TRANSACTIONAL_ID_AUTH"),
    )
    for line, words in zip(lines, expected, strict=False):
        with flow.without(line):
            result = _verify(flow)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert all(word in result.stderr for word in words), result.stderr
        assert "spark-eos acls --for verify prints" in result.stderr
    configs = lines[len(expected) :]
    assert len(configs) == 2
    for line, topic in zip(configs, (flow.source, flow.target), strict=True):
        with flow.without(line):
            result = _verify(flow)
        assert result.exit_code == 0
        note = f"for lack of DescribeConfigs on topic '{topic}'"
        assert note in " ".join(result.stdout.split())


def _granted(flow: Guarded, purpose: str) -> list[str]:
    lines = flow.commands("--for", purpose)
    flow.grant(*lines)
    return lines


def _documented(flow: Guarded, column: str, missing: str) -> str:
    """The text of docs/acls.md, with the flow's names."""
    (text,) = (
        row[column]
        for table in page("docs/acls.md").tables
        for row in table.rows
        if column in table.columns and row["without"].startswith(missing)
    )
    for name, value in {
        "PRINCIPAL": flow.principal,
        "SOURCE": flow.source,
        "TARGET": flow.target,
        "GROUP": flow.group_id,
    }.items():
        # Words, not the names of codes.
        text = re.sub(rf"(?<![A-Z_]){name}(?![A-Z_])", value, text)
    return text


@pytest.mark.slow
def test_with_the_acls_printed_a_query_runs_restarts_and_replays(
    flow: Guarded, spark_eos_session: SparkSession
) -> None:
    flow.grant(*flow.commands())
    flow.produce(range(10))
    (report,) = run_available(spark_eos_session, flow)
    assert (report.rows_written, report.attempts) == (10, 1)
    flow.produce(range(10, 15))
    (report,) = run_available(spark_eos_session, flow)
    assert report.rows_written == 5
    # As if Spark had died before it noted the end of the batch.
    for name in ("1", ".1.crc"):
        (Path(flow.checkpoint) / "commits" / name).unlink()
    (report,) = run_available(spark_eos_session, flow)
    assert (report.batch_id, report.rows_written, report.rows_skipped) == (1, 0, 5)
    assert sorted(map(int, flow.values())) == list(range(15))
