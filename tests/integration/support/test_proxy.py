"""The proxy of `support.proxy` does what it says, to the real broker's requests and answers."""

import threading
import time
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from spark_eos._client.error_codes import Code
from spark_eos._kafka import cluster
from support import proxy_faults as faults
from support.flow import Flow
from support.members import deadline
from support.proxy import KafkaProxy

# Each with whether the broker answers what is lost.
_ALL_WAYS = [
    (faults.CutBefore(), False),
    (faults.CutAfter(), True),
    (faults.DropAnswer(), True),
    (faults.DropRequest(), False),
]


class _Answered:
    """The requests that the broker has answered."""

    def __init__(self) -> None:
        self.requests: list[faults.Request] = []

    def request(self, _link: faults.Link, _request: faults.Request) -> None:
        """Nothing."""

    def answer(self, _link: faults.Link, request: faults.Request) -> None:
        self.requests.append(request)

    def gone(self, _link: faults.Link) -> None:
        """Nothing."""


def test_everything_passes_and_is_recorded(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    proxied_flow.produce(range(4))

    with proxied_flow.connections() as connections:
        before = proxy.count(MetadataRequest, "spark-eos-")
        found = cluster.topics(connections, [proxied_flow.source], deadline())

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

    with proxied_flow.connections() as connections:
        rule = proxy.on(MetadataRequest, faults.Rewrite(nothing_found), where=asks)

        assert cluster.topics(connections, [proxied_flow.source], deadline()) == {}
        assert cluster.topics(connections, [proxied_flow.source], deadline())
    assert len(rule.hits) == 1


@pytest.mark.parametrize(
    ("fault", "answered"), _ALL_WAYS, ids=[type(fault).__name__ for fault, _ in _ALL_WAYS]
)
def test_lost_requests_and_answers(
    fault: faults.Fault,
    answered: bool,  # noqa: FBT001
    proxied_flow: Flow,
    proxy: KafkaProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = _Answered()
    with proxied_flow.connections() as connections:
        cluster.topics(connections, [proxied_flow.source], deadline())
        connections._request_timeout = 0.3
        monkeypatch.setattr(proxy, "observer", seen)
        rule = proxy.on(MetadataRequest, fault, where=lambda m: bool(m.topics))

        assert cluster.topics(connections, [proxied_flow.source], deadline())
    (lost,) = rule.hits
    asked = [r for r in proxy.requests if r.api_key == MetadataRequest.API_KEY]
    repeated = asked[asked.index(lost) + 1 :]
    assert [r for r in repeated if r.message().topics], "the client was answered all the same"
    assert (lost in seen.requests) == answered


def test_held_and_doubled(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    until = threading.Event()
    with proxied_flow.connections() as connections:
        cluster.topics(connections, [proxied_flow.source], deadline())
        proxy.on(MetadataRequest, faults.HoldAnswer(until))
        began = time.monotonic()
        threading.Timer(0.3, until.set).start()
        cluster.topics(connections, [proxied_flow.source], deadline())
        assert time.monotonic() - began >= 0.3

        twice = faults.Twice()
        doubled = proxy.on(MetadataRequest, twice)
        assert cluster.topics(connections, [proxied_flow.source], deadline())
        assert cluster.topics(connections, [proxied_flow.source], deadline())

    late = proxy.deliver(doubled.await_hit())
    for answer in (twice.first, late):
        assert [topic.name for topic in answer.topics] == [proxied_flow.source]


def test_all_connections_are_cut(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    with proxied_flow.connections() as connections:
        cluster.topics(connections, [proxied_flow.source], deadline())
        before = proxy.count(ApiVersionsRequest, "spark-eos-")
        proxy.cut()

        assert cluster.topics(connections, [proxied_flow.source], deadline())
    # On a connection of its own, which begins with this.
    assert proxy.count(ApiVersionsRequest, "spark-eos-") > before
