"""`support.proxy` applies its faults to a real broker's requests and answers."""

import threading
import time

import pytest
from kafka.protocol.metadata import MetadataRequest

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
        """Does nothing."""

    def answer(self, _link: faults.Link, request: faults.Request, _content: bytes) -> None:
        self.requests.append(request)

    def gone(self, _link: faults.Link) -> None:
        """Does nothing."""


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
        monkeypatch.setattr(proxy, "observers", (seen,))
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
