"""Topics with a single replica are warned of: one broker's crash may hide their records."""

from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest
from pyspark.sql import SparkSession

from spark_eos.client.error_codes import Code
from spark_eos.driver.replication import warn_of_single_replicas
from support.flow import Flow
from support.members import deadline, started
from support.proxy import KafkaProxy
from support.proxy_faults import Rewrite
from support.queries import run_available
from support.writing import rows, transactions

_INTERNAL = "__consumer_offsets", "__transaction_state"


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "spark_eos.driver.replication"]


def test_each_run_warns_once_and_names_the_topics(
    flow: Flow, spark_eos_session: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    flow.produce(range(6))
    reports = run_available(spark_eos_session, flow, read={"options": {"maxOffsetsPerTrigger": 2}})
    assert len(reports) > 1
    (warning,) = _warnings(caplog)
    assert f"a single replica in topics: {', '.join(_INTERNAL)}, {flow.target}. If" in warning
    assert "kafka-reassign-partitions.sh" in warning
    assert flow.source not in warning


def _replicated(_request: Any, answer: Any) -> None:
    for topic in answer.topics:
        for partition in topic.partitions:
            partition.replica_nodes = partition.isr_nodes = [1, 2, 3]


def _one_partition_is_not(request: Any, answer: Any) -> None:
    _replicated(request, answer)
    for topic in answer.topics:
        if topic.name not in _INTERNAL:
            topic.partitions[-1].replica_nodes = [1]


def _internal_ones_are_hidden(_request: Any, answer: Any) -> None:
    codes = {
        _INTERNAL[0]: Code.TOPIC_AUTHORIZATION_FAILED,
        _INTERNAL[1]: Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
    for topic in answer.topics:
        if topic.name in codes:
            topic.error_code, topic.partitions = codes[topic.name], []


@pytest.mark.parametrize(
    ("change", "named"),
    [(_replicated, False), (_one_partition_is_not, True), (_internal_ones_are_hidden, True)],
)
def test_only_what_the_brokers_tell_is_warned_of(
    change: Callable[[Any, Any], None],
    named: bool,  # noqa: FBT001 - a parameter of the test
    proxied_flow: Flow,
    proxy: KafkaProxy,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Brokers with three replicas, or an ACL on internal topics, can't be had here."""
    proxy.on(
        MetadataRequest,
        Rewrite(change),
        where=lambda m: _INTERNAL[0] in {topic.name for topic in m.topics or ()},
    )
    with proxied_flow.wire() as wire:
        warn_of_single_replicas(wire, proxied_flow.target, deadline())
    told = [w.partition(". ")[0] for w in _warnings(caplog)]
    assert told == [f"a single replica in topics: {proxied_flow.target}"] * named


def test_where_rows_name_their_topics_the_internal_ones_are_looked_at(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    with started(flow) as membership, transactions(flow, membership) as writing:
        # Both are made by whoever needs them first.
        writing.add(rows(flow, 0, 0))
        writing.commit()
        warn_of_single_replicas(writing._producer.wire, None, deadline())
    told = [w.partition(". ")[0] for w in _warnings(caplog)]
    assert told == [f"a single replica in topics: {', '.join(_INTERNAL)}"]
