"""Warnings about topics whose replicas or configs may lose acknowledged records."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.metadata import MetadataRequest
from pyspark.sql import SparkSession

from spark_eos._checks.replication import warn_of_replication
from spark_eos._client.error_codes import Code
from support.flow import Flow
from support.members import deadline, started
from support.proxy import KafkaProxy
from support.proxy_faults import Rewrite
from support.queries import run_available
from support.topic_limits import configure
from support.writing import rows, transactions

_INTERNAL = "__consumer_offsets", "__transaction_state"


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "spark_eos._checks.replication"]


def _elsewhere(_request: Any, answer: Any) -> None:
    """The test's broker advertises 127.0.0.1."""
    for broker in answer.brokers:
        broker.host = "kafka-1.example"


def _change_answers(proxy: KafkaProxy, change: Callable[[Any, Any], None]) -> None:
    """Changes only the broker's answer to `warn_of_replication`."""
    proxy.on(
        MetadataRequest,
        Rewrite(change),
        times=None,
        where=lambda m: _INTERNAL[0] in {topic.name for topic in m.topics or ()},
    )


@pytest.mark.slow
def test_each_run_warns_once_and_names_the_topics(
    proxied_flow: Flow,
    proxy: KafkaProxy,
    spark_eos_session: SparkSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    flow = proxied_flow
    _change_answers(proxy, _elsewhere)
    flow.produce(range(6))
    reports = run_available(spark_eos_session, flow, read={"options": {"maxOffsetsPerTrigger": 2}})
    assert len(reports) > 1
    (warning,) = _warnings(caplog)
    assert warning.startswith(f"only one replica of {', '.join(_INTERNAL)}, {flow.target}: ")
    assert "kafka-reassign-partitions.sh" in warning
    assert flow.source not in warning
    assert len(warning) < 240


def _two_here(_request: Any, answer: Any) -> None:
    other = copy.copy(answer.brokers[0])
    other.node_id += 1
    answer.brokers.append(other)


def _replicated(_request: Any, answer: Any) -> None:
    for topic in answer.topics:
        for partition in topic.partitions:
            partition.replica_nodes = partition.isr_nodes = [1, 2, 3]


def _one_partition_is_not(request: Any, answer: Any) -> None:
    _elsewhere(request, answer)
    _replicated(request, answer)
    for topic in answer.topics:
        if topic.name not in _INTERNAL:
            topic.partitions[-1].replica_nodes = [1]


def _internal_ones_are_hidden(request: Any, answer: Any) -> None:
    _elsewhere(request, answer)
    codes = {
        _INTERNAL[0]: Code.TOPIC_AUTHORIZATION_FAILED,
        _INTERNAL[1]: Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
    for topic in answer.topics:
        if topic.name in codes:
            topic.error_code, topic.partitions = codes[topic.name], []


def _as_it_is(_request: Any, _answer: Any) -> None:
    """A lone broker on this machine."""


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_as_it_is, False),
        # They could have two replicas.
        (_two_here, True),
        (_elsewhere, True),
        (_replicated, False),
        (_one_partition_is_not, True),
        (_internal_ones_are_hidden, True),
    ],
)
def test_warnings_cover_only_what_the_brokers_report(
    change: Callable[[Any, Any], None],
    named: bool,  # noqa: FBT001 - a parameter of the test
    proxied_flow: Flow,
    proxy: KafkaProxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """This setup can't have several brokers, three replicas, or an ACL on internal topics."""
    flow = proxied_flow
    # With a single replica it makes no difference.
    configure(flow, flow.target, {"unclean.leader.election.enable": str(named).lower()})
    _change_answers(proxy, change)
    with flow.connections() as connections:
        warn_of_replication(connections, [flow.target], deadline())
    found = [w for w in _warnings(caplog) if flow.target in w]
    single = [w for w in found if w.startswith("only one replica of ")]
    assert len(single) == named
    if named:
        assert found == single
    if change in (_one_partition_is_not, _internal_ones_are_hidden):
        assert _INTERNAL[0] not in single[0]


def test_internal_topics_are_checked_if_rows_name_their_topics(
    proxied_flow: Flow, proxy: KafkaProxy, caplog: pytest.LogCaptureFixture
) -> None:
    flow = proxied_flow
    _change_answers(proxy, _elsewhere)
    with started(flow) as membership, transactions(flow, membership) as writing:
        # Both are made by whoever needs them first.
        writing.add(rows(flow, 0, 0))
        writing.commit()
        warn_of_replication(writing._producer.connections, [], deadline())
    warned = [w.partition(": ")[0] for w in _warnings(caplog)]
    assert warned == [f"only one replica of {', '.join(_INTERNAL)}"]


_SAFE = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}
_SETTING = "kafka-configs.sh --bootstrap-server {} --alter --entity-type topics --entity-name {} "


@pytest.mark.parametrize(
    ("configs", "unsafe"),
    [
        ({"min.insync.replicas": "1"}, ["min.insync.replicas=1"]),
        ({"unclean.leader.election.enable": "true"}, ["unclean.leader.election.enable=true"]),
        (
            {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"},
            ["min.insync.replicas=1", "unclean.leader.election.enable=true"],
        ),
        ({}, []),
    ],
)
def test_configs_that_may_lose_records_are_warned_of_once(
    configs: dict[str, str],
    unsafe: list[str],
    proxied_flow: Flow,
    proxy: KafkaProxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The configs are the topic's own; this setup can't have three replicas."""
    flow = proxied_flow
    configure(flow, flow.target, {**_SAFE, **configs})
    proxy.on(MetadataRequest, Rewrite(_replicated), times=None)
    with flow.connections() as connections:
        warn_of_replication(connections, [flow.target], deadline())
    found = [w for w in _warnings(caplog) if flow.target in w]
    assert len(found) == bool(unsafe)
    for warning in found:
        assert f"{flow.target} ({', '.join(unsafe)})" in warning
        safe = ",".join(f"{name}={_SAFE[name]}" for name in sorted(configs))
        command = _SETTING.format(flow.bootstrap_servers, flow.target)
        assert f"{command}--add-config {safe}" in warning
        # What it advises.
        configure(flow, flow.target, {name: _SAFE[name] for name in configs})
    caplog.clear()
    with flow.connections() as connections:
        warn_of_replication(connections, [flow.target], deadline())
    assert not any(flow.target in warning for warning in _warnings(caplog))


def test_configs_that_are_hidden_are_not_warned_of(
    proxied_flow: Flow, proxy: KafkaProxy, caplog: pytest.LogCaptureFixture
) -> None:
    def hide(_request: Any, answer: Any) -> None:
        for result in answer.results:
            result.error_code, result.configs = Code.TOPIC_AUTHORIZATION_FAILED, []

    proxy.on(MetadataRequest, Rewrite(_replicated), times=None)
    hidden = proxy.on(DescribeConfigsRequest, Rewrite(hide))
    with proxied_flow.connections() as connections:
        warn_of_replication(connections, [proxied_flow.target], deadline())
    assert len(hidden.hits) == 1
    assert _warnings(caplog) == []
