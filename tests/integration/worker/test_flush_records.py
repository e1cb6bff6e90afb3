"""How long a producer's records are waited for."""

import threading
import time

import pytest
from confluent_kafka import Producer
from kafka.protocol.producer import ProduceRequest

from spark_eos._client.confluent_traps import flush_records
from support.flow import Flow
from support.proxy import KafkaProxy
from support.proxy_faults import DropRequest, HoldRequest


def test_until_all_are_acknowledged(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    answered = threading.Event()
    proxy.on(ProduceRequest, HoldRequest(answered))
    producer = Producer(proxied_flow.kafka)
    producer.produce(proxied_flow.target, b"late")
    threading.Timer(0.5, answered.set).start()
    began = time.monotonic()
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
