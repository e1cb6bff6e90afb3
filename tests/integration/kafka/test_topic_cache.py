"""What is known of topics: asked for once, waited for, forgotten when nobody uses it."""

import json
import math
import threading
import time
from contextlib import closing

import pytest
from cachetools import TTLCache
from kafka.protocol.metadata import MetadataRequest

from spark_eos._client.settings import ClientSettings
from spark_eos._exactly_once import task
from spark_eos._exactly_once.task import write_task
from spark_eos._exactly_once.transaction import Transactions
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.topic_cache import MissingTopicsError, TopicCache
from spark_eos.errors import DeadlineExceededError
from spark_eos.options import Limits
from support.flow import Flow
from support.members import deadline, started
from support.proxy import KafkaProxy
from support.proxy_faults import Request
from support.versions import needs_topic_ids
from support.writing import row_batch, rows, sent_requests, transactions


def _cache(
    connections: Connections, max_block_ms: int = 10_000, max_idle_ms: int = 300_000
) -> TopicCache:
    return TopicCache(
        connections, Limits(max_block_ms=max_block_ms, metadata_max_idle_ms=max_idle_ms)
    )


def _cache_with_a_clock(connections: Connections) -> tuple[TopicCache, list[float]]:
    """A cache that forgets what nobody asks for within a second of a clock that the test moves."""
    clock = [0.0]
    cache = _cache(connections)
    cache._topics = TTLCache(math.inf, 1.0, timer=lambda: clock[0])
    return cache, clock


def _asking(requests: list[Request], *topics: str) -> int:
    """How many metadata requests name all of the topics."""
    return sum(
        request.api_key == MetadataRequest.API_KEY
        and all(t.encode() in request.content for t in topics)
        for request in requests
    )


def test_a_topic_in_use_is_asked_for_once(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = sent_requests(monkeypatch)
    with flow.connections() as connections:
        cache, clock = _cache_with_a_clock(connections)
        first = cache.get([flow.source])
        for _ in range(5):
            clock[0] += 0.7
            assert cache.get([flow.source]) == first
        assert _asking(requests, flow.source) == 1
        # Only what is not known is asked for, in one request.
        cache.get([flow.source, flow.target])
        assert _asking(requests, flow.target) == 1
        assert _asking(requests, flow.source) == 1


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
        assert _asking(requests, flow.source) == 2


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
    """The last attempt may begin when hardly any time is left; a busy broker takes its time."""
    with proxied_flow.connections() as connections:
        connections.brokers(deadline())
        proxy.latency = 0.1
        answer = connections.send(MetadataRequest(topics=[]), Deadline(0.0, "test"))
    assert answer.brokers


# By name, topics are looked up once more before each commit.
@needs_topic_ids
def test_a_worker_asks_once_for_topics_that_it_commits_again_and_again(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = sent_requests(monkeypatch)
    with started(flow) as membership, transactions(flow, membership) as first:
        driver = _asking(requests, flow.source)
        producer, settings, plan = first._producer, first._settings, first._plan
        for offset in range(0, 16, 2):
            # A task of its own each time, as in batch after batch.
            writing = Transactions(producer, settings, plan)
            for part in (offset, offset + 1):
                writing.add(rows(flow, 0, part))
            writing.add(rows(flow, 1, offset))
            writing.commit()
        assert _asking(requests, flow.target) == 1
        assert _asking(requests, flow.source) == driver
        # After a failure nothing is taken for known.
        writing.add(rows(flow, 0, 16))
        writing.abort()
        writing.add(rows(flow, 0, 16))
        writing.commit()
        assert _asking(requests, flow.target) == 2
    assert len(flow.values()) == 25


@pytest.mark.slow
def test_a_later_round_keeps_nothing(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = sent_requests(monkeypatch)
    monkeypatch.setattr(task, "_producers", {})
    used: list[tuple[int, int]] = []
    with started(flow) as membership, transactions(flow, membership) as writing:
        for number, discard_producer in enumerate((False, False, True)):
            run = write_task(writing._settings, writing._plan, discard_producer=discard_producer)
            (report,) = run(iter([row_batch(flow, 0, number)]))
            (text,) = report.column(0).to_pylist()
            assert [row["status"] for row in json.loads(text)] == ["written", "written"]
            (producer,) = task._producers.values()
            used.append((producer.identity.epoch, _asking(requests, flow.target)))
        producer.close()
    first, second, third = used
    assert first == second
    assert third[0] > second[0]
    assert third[1] > second[1]
    assert sorted(flow.values()) == ["0/0", "0/1", "0/2"]
