"""How long a producer's records are waited for."""

import threading
import time
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka.protocol.producer import ProduceRequest

from spark_eos._client.confluent_traps import flush_records, leave_transaction
from support.flow import Flow
from support.proxy import KafkaProxy
from support.proxy_faults import DropRequest, HoldRequest


def test_until_all_are_acknowledged(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    answered = threading.Event()
    proxy.on(ProduceRequest, HoldRequest(answered))
    producer = Producer(proxied_flow.kafka)
    producer.produce(proxied_flow.target, b"late")
    began = time.monotonic()
    threading.Timer(0.5, answered.set).start()
    assert flush_records(producer, 30.0) == 0
    assert 0.4 < time.monotonic() - began < 20.0
    assert proxied_flow.values() == ["late"]


@pytest.mark.parametrize("seconds", [-1.0, 0.4, 0.7])
def test_no_longer_than_told(proxied_flow: Flow, proxy: KafkaProxy, seconds: float) -> None:
    proxy.on(ProduceRequest, DropRequest(), times=None)
    producer = Producer({**proxied_flow.kafka, "message.timeout.ms": 30_000})
    producer.produce(proxied_flow.target, b"lost")
    began = time.monotonic()
    assert flush_records(producer, seconds) == 1
    assert seconds - 0.05 <= time.monotonic() - began < seconds + 10.0
    producer.purge()
    assert flush_records(producer, 10.0) == 0


class _Counting:
    """A producer that counts how often it is flushed."""

    def __init__(self, producer: Producer) -> None:
        self.flushed = 0
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def flush(self, seconds: float) -> int:
        self.flushed += 1
        return self._producer.flush(seconds)


def test_no_longer_than_until_they_are_given_up(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    proxy.on(ProduceRequest, DropRequest(), times=None)
    producer = Producer({**proxied_flow.kafka, "transactional.id": proxied_flow.name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(proxied_flow.target, b"lost")
    counting = _Counting(producer)
    leave_transaction(counting)
    # Each takes a moment, or was the last.
    assert 1 <= counting.flushed < 20
    assert len(producer) == 0
