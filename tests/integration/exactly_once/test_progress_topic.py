"""The progress topic is created if it does not exist; an existing topic is used unchanged."""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.metadata import MetadataRequest

from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.cluster import TopicInfo
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.progress_topic import ensure_progress_topic
from spark_eos.errors import (
    ConfigurationError,
    DeadlineExceededError,
    KafkaResponseError,
)
from spark_eos.options import ProgressTopic
from spark_eos.testing import EmbeddedKafka
from support.members import deadline
from support.proxy import KafkaProxy
from support.proxy_faults import CutAfter, Fault, Rewrite
from support.writing import sent_requests

_CREATE = CreateTopicsRequest.API_KEY


@pytest.fixture
def name() -> str:
    return f"progress-{uuid.uuid4().hex[:10]}"


@contextmanager
def _connections(servers: str) -> Iterator[Connections]:
    with closing(Connections(ClientSettings({"bootstrap.servers": servers}))) as connections:
        yield connections


def _ensure(broker: EmbeddedKafka | KafkaProxy, name: str, **options: Any) -> TopicInfo:
    with _connections(broker.bootstrap_servers) as connections:
        return ensure_progress_topic(connections, ProgressTopic(name, **options), deadline())


def _there(broker: EmbeddedKafka, name: str) -> list[int]:
    """The leaders of a topic's partitions; none if it does not exist."""
    found = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=60)
    return (
        [p.leader for p in found.topics[name].partitions.values()] if name in found.topics else []
    )


def test_it_is_created_once_and_then_used(
    embedded_kafka: EmbeddedKafka, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = sent_requests(monkeypatch)
    created = _ensure(embedded_kafka, name)
    assert (created.name, created.partitions) == (name, 33)
    leaders = _there(embedded_kafka, name)
    assert len(leaders) == 33
    assert -1 not in leaders
    # Other options change nothing of a topic that exists.
    assert _ensure(embedded_kafka, name, partitions=5, replicas=7) == created
    (request,) = [found for found in requests if found.api_key == _CREATE]
    (sent,) = request.message().topics
    assert (sent.num_partitions, sent.replication_factor) == (33, -1)


def test_replicas_are_those_of_the_option(embedded_kafka: EmbeddedKafka, name: str) -> None:
    assert _ensure(embedded_kafka, name, partitions=2, replicas=1).partitions == 2


def test_many_drivers_create_one_topic(embedded_kafka: EmbeddedKafka, name: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: _ensure(embedded_kafka, name), range(8)))
    assert found == [found[0]] * 8
    assert len(_there(embedded_kafka, name)) == 33


def test_one_that_an_operator_has_made_is_used_as_it_is(
    embedded_kafka: EmbeddedKafka, name: str
) -> None:
    embedded_kafka.create_topic(name, 3)
    assert _ensure(embedded_kafka, name).partitions == 3


def test_a_single_partition_is_too_few(embedded_kafka: EmbeddedKafka, name: str) -> None:
    embedded_kafka.create_topic(name, 1)
    with pytest.raises(ConfigurationError) as refusal:
        _ensure(embedded_kafka, name, partitions=9)
    assert f"progress_topic={name!r} has 1 partition, but needs at least 2" in str(refusal.value)
    assert refusal.value.text.endswith(
        f"kafka-topics.sh --bootstrap-server {embedded_kafka.bootstrap_servers} --alter "
        f"--topic {name} --partitions 9"
    )
    embedded_kafka.add_partitions(name, 9)
    assert _ensure(embedded_kafka, name, partitions=9).partitions == 9


def test_a_refusal_by_the_cluster_is_reported_with_its_reason(
    embedded_kafka: EmbeddedKafka, name: str
) -> None:
    with pytest.raises(KafkaResponseError) as refusal:
        _ensure(embedded_kafka, name, replicas=3)
    text = refusal.value.text
    assert refusal.value.code == 38
    assert "38 INVALID_REPLICATION_FACTOR: " in text
    assert "only 1 broker(s)" in text
    assert "progress_topic.replicas=3" in text
    assert text.endswith(f"--create --topic {name} --partitions 33 --replication-factor 3")
    assert _there(embedded_kafka, name) == []


def test_looking_it_up_does_not_create_it_with_broker_defaults(name: str) -> None:
    defaults = {"auto.create.topics.enable": "true", "num.partitions": "1"}
    with EmbeddedKafka(properties=defaults) as broker:
        assert _ensure(broker, name, partitions=4).partitions == 4


def _code(code: int) -> Callable[[Any, Any], None]:
    def change(_request: Any, answer: Any) -> None:
        answer.topics[0].error_code = code

    return change


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(CutAfter(), id="the answer is lost"),
        pytest.param(Rewrite(_code(41)), id="NOT_CONTROLLER"),
        pytest.param(Rewrite(_code(7)), id="REQUEST_TIMED_OUT"),
        pytest.param(Rewrite(_code(89)), id="THROTTLING_QUOTA_EXCEEDED"),
    ],
)
def test_an_attempt_that_has_come_to_nothing_is_repeated(
    fault: Fault, proxy: KafkaProxy, name: str
) -> None:
    rule = proxy.on(CreateTopicsRequest, fault)
    assert _ensure(proxy, name).partitions == 33
    assert len(rule.hits) == 1
    # The broker had created it: the second attempt is told that it exists.
    assert proxy.count(CreateTopicsRequest) == 2


def _without_a_leader(_request: Any, answer: Any) -> None:
    for topic in answer.topics:
        if topic.partitions:
            topic.partitions[-1].leader_id = -1


def _asked_for(name: str) -> Callable[[Any], bool]:
    return lambda request: [topic.name for topic in request.topics or ()] == [name]


def test_the_driver_waits_until_a_new_topic_has_all_leaders(proxy: KafkaProxy, name: str) -> None:
    rule = proxy.on(MetadataRequest, Rewrite(_without_a_leader), times=3, where=_asked_for(name))
    assert _ensure(proxy, name, partitions=2).partitions == 2
    # One of them was before the topic existed.
    assert len(rule.hits) == 3


def test_leaders_that_do_not_come_end_the_wait(proxy: KafkaProxy, name: str) -> None:
    answered: list[Any] = []

    def change(request: Any, answer: Any) -> None:
        _without_a_leader(request, answer)
        answered.extend(topic for topic in answer.topics if topic.partitions)

    proxy.on(MetadataRequest, Rewrite(change), times=None, where=_asked_for(name))

    class UntilToldTwice(Deadline):
        """However long a busy broker takes to create the topic and to return it in metadata."""

        @property
        def expired(self) -> bool:
            return len(answered) > 1

    with (
        _connections(proxy.bootstrap_servers) as connections,
        pytest.raises(DeadlineExceededError, match="partitions without a leader: 1"),
    ):
        ensure_progress_topic(connections, ProgressTopic(name), UntilToldTwice(60, "test"))


def test_one_that_exists_needs_no_leaders(proxy: KafkaProxy, name: str) -> None:
    """It holds no records, so no requests are sent to its leaders."""
    _ensure(proxy, name)
    rule = proxy.on(MetadataRequest, Rewrite(_without_a_leader), times=None, where=_asked_for(name))
    assert _ensure(proxy, name).partitions == 33
    assert rule.hits
