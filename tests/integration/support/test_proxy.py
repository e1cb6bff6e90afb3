"""The proxy of `support.proxy` does what it says, to the real broker's requests and answers."""

import threading
import time
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest

from spark_eos.client.error_codes import Code
from spark_eos.kafka import cluster
from support import proxy_faults as faults
from support.flow import Flow
from support.members import deadline
from support.proxy import KafkaProxy

_ALL_WAYS = [
    faults.CutBefore(),
    faults.CutAfter(),
    faults.DropAnswer(),
    faults.DropRequest(),
]


def test_everything_passes_and_is_recorded(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    proxied_flow.produce(range(4))

    with proxied_flow.wire() as wire:
        before = proxy.count(MetadataRequest, "spark-eos-")
        found = cluster.topics(wire, [proxied_flow.source], deadline())

    assert found[proxied_flow.source].partitions == 2
    assert proxy.count(MetadataRequest, "spark-eos-") > before
    # Whoever is told where the broker is stays behind the proxy.
    assert len({request.client_id for request in proxy.requests}) > 1


def test_an_answer_of_the_tests_own(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    def nothing_found(_request: Any, answer: Any) -> None:
        for topic in answer.topics:
            topic.error_code = Code.UNKNOWN_TOPIC_OR_PARTITION

    def asks(message: Any) -> bool:
        return any(t.name == proxied_flow.source for t in message.topics or ())

    with proxied_flow.wire() as wire:
        rule = proxy.on(MetadataRequest, faults.Rewrite(nothing_found), where=asks)

        assert cluster.topics(wire, [proxied_flow.source], deadline()) == {}
        assert cluster.topics(wire, [proxied_flow.source], deadline())
    assert len(rule.hits) == 1


@pytest.mark.parametrize("fault", _ALL_WAYS, ids=lambda fault: type(fault).__name__)
def test_lost_requests_and_answers(
    fault: faults.Fault, proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    with proxied_flow.wire() as wire:
        cluster.topics(wire, [proxied_flow.source], deadline())
        wire._request_timeout = 0.3
        rule = proxy.on(
            MetadataRequest, fault, where=lambda m: m.topics and m.topics[0].name != "other"
        )

        assert cluster.topics(wire, [proxied_flow.source], deadline())
    assert len(rule.hits) == 1


def test_held_and_doubled(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    until = threading.Event()
    with proxied_flow.wire() as wire:
        cluster.topics(wire, [proxied_flow.source], deadline())
        proxy.on(MetadataRequest, faults.HoldAnswer(until))
        threading.Timer(0.3, until.set).start()
        began = time.monotonic()
        cluster.topics(wire, [proxied_flow.source], deadline())
        assert time.monotonic() - began >= 0.3

        doubled = proxy.on(MetadataRequest, faults.Twice())
        assert cluster.topics(wire, [proxied_flow.source], deadline())
        assert cluster.topics(wire, [proxied_flow.source], deadline())

    late = proxy.deliver(doubled.await_hit())
    assert [topic.name for topic in late.topics] == [proxied_flow.source]


def test_all_connections_are_cut(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    with proxied_flow.wire() as wire:
        cluster.topics(wire, [proxied_flow.source], deadline())
        proxy.cut()

        assert cluster.topics(wire, [proxied_flow.source], deadline())
