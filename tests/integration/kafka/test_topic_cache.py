"""Topic metadata is requested once, waited for, and dropped when unused."""

import math
import threading
import time
from contextlib import closing

import pytest
from cachetools import TTLCache
from kafka.protocol.metadata import MetadataRequest

from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.topic_cache import MissingTopicsError, TopicCache
from spark_eos.errors import DeadlineExceededError
from spark_eos.options import Limits
from support.flow import Flow
from support.members import deadline
from support.proxy import KafkaProxy
from support.writing import requests_naming, sent_requests


def _cache(
    connections: Connections, max_block_ms: int = 10_000, max_idle_ms: int = 300_000
) -> TopicCache:
    return TopicCache(
        connections, Limits(max_block_ms=max_block_ms, metadata_max_idle_ms=max_idle_ms)
    )


def _cache_with_a_clock(connections: Connections) -> tuple[TopicCache, list[float]]:
    """A cache that drops unused topics within a second, by a clock that the test controls."""
    clock = [0.0]
    cache = _cache(connections)
    cache._topics = TTLCache(math.inf, 1.0, timer=lambda: clock[0])
    return cache, clock


def test_a_topic_in_use_is_asked_for_once(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = sent_requests(monkeypatch)
    with flow.connections() as connections:
        cache, clock = _cache_with_a_clock(connections)
        first = cache.get([flow.source])
        for _ in range(5):
            clock[0] += 0.7
            assert cache.get([flow.source]) == first
        assert requests_naming(requests, flow.source) == 1
        # Only what is not known is asked for, in one request.
        cache.get([flow.source, flow.target])
        assert requests_naming(requests, flow.target) == 1
        assert requests_naming(requests, flow.source) == 1


def test_an_idle_topic_leaves_the_cache(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = sent_requests(monkeypatch)
    with flow.connections() as connections:
        assert _cache(connections, max_idle_ms=1_500)._topics.ttl == 1.5
        cache, clock = _cache_with_a_clock(connections)
        before = cache.get([flow.source])
        flow.recreate(flow.source)
        clock[0] += 1.1
        assert len(cache._topics) == 0
        assert cache.get([flow.source]) != before
        assert requests_naming(requests, flow.source) == 2


def test_what_was_forgotten_is_asked_for_again(flow: Flow) -> None:
    with flow.connections() as connections:
        cache = _cache(connections)
        old = cache.get([flow.source])
        flow.recreate(flow.source, 3)
        assert cache.get([flow.source]) == old
        new = cache.refresh([flow.source])
        assert new[flow.source].topic_id != old[flow.source].topic_id
        assert new[flow.source].partitions == 3
        assert cache.get([flow.source]) == new
        flow.recreate(flow.source)
        cache.clear()
        assert cache.get([flow.source]) != new


def test_a_missing_topic_is_waited_for(flow: Flow) -> None:
    late = f"late-{flow.name}"
    create = threading.Timer(0.4, flow.broker.create_topic, [late])
    create.start()
    with flow.connections() as connections:
        found = _cache(connections).get([flow.source, late])
    create.join()
    assert found.keys() == {flow.source, late}


def test_a_topic_that_does_not_come_to_be(flow: Flow) -> None:
    names = [f"none-{flow.name}", flow.source, f"never-{flow.name}"]
    with flow.connections() as connections:
        began = time.monotonic()
        with pytest.raises(MissingTopicsError, match=r"0\.3 s for it \(max_block_ms\)") as failure:
            _cache(connections, max_block_ms=300).get(names)
    assert time.monotonic() - began >= 0.3
    assert failure.value.names == sorted(names[::2])


@pytest.mark.parametrize("name", ["not valid", "..", "x" * 250])
def test_a_name_that_no_topic_can_have_is_not_waited_for(
    flow: Flow, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = sent_requests(monkeypatch)
    impossible = pytest.raises(MissingTopicsError, match="no topic can have such a name")
    with flow.connections() as connections, impossible:
        _cache(connections).get([name])
    assert requests == []


def test_a_cluster_that_does_not_answer() -> None:
    late = pytest.raises(DeadlineExceededError, match="max_block_ms")
    with (
        closing(Connections(ClientSettings({"bootstrap.servers": "127.0.0.1:1"}))) as connections,
        late,
    ):
        _cache(connections, max_block_ms=200).get(["any"])


def test_an_answer_is_not_cut_off_by_the_end_of_the_time(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    """The last attempt may begin with hardly any time left; a busy broker takes its time."""
    with proxied_flow.connections() as connections:
        connections.brokers(deadline())
        proxy.latency = 0.1
        answer = connections.send(MetadataRequest(topics=[]), Deadline(0.0, "test"))
    assert answer.brokers
