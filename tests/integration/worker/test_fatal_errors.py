"""How the worker's producer ends: with a fatal error that is named, or dropped."""

import gc
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from kafka.protocol.producer import AddPartitionsToTxnRequest, ProduceRequest

from spark_eos._client.error_codes import Code
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.transactions import fence_producer
from spark_eos._worker import producer
from support.flow import Flow
from support.members import deadline
from support.proxy import KafkaProxy
from support.proxy_faults import DropRequest, Rewrite
from support.writing import refused, rows, writer


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_producer_that_is_given_up_adds_no_partition_any_more(
    proxied_flow: Flow, proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch, *, interrupted: bool
) -> None:
    def not_yet(_request: Any, answer: Any) -> None:
        for topic in answer.results_by_topic_v3_and_below:
            for partition in topic.results_by_partition:
                partition.partition_error_code = Code.CONCURRENT_TRANSACTIONS

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def asked() -> int:
        return proxy.count(AddPartitionsToTxnRequest)

    proxy.on(AddPartitionsToTxnRequest, Rewrite(not_yet), times=None)
    with writer(proxied_flow) as writing:
        writing.add(rows(proxied_flow, 0, 0))
        while asked() < 2:
            time.sleep(0.01)
        # Keep the handle, as librdkafka's threads do while it closes: adding a partition then
        # fails an assertion, which ends the process.
        _producer = writing._producer._producer
        if interrupted:
            monkeypatch.setattr(producer, "fence_producer", interrupt)
            with pytest.raises(KeyboardInterrupt):
                writing.abort()
        else:
            writing.abort()
        before = asked()
        time.sleep(0.3)
        assert asked() == before


def open_producers() -> int:
    gc.collect()  # what pytest keeps of errors
    names = (file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm"))
    return sum(name == "rdk:main" for name in names)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("fenced", [False, True])
def test_a_producer_that_is_given_up_is_closed(flow: Flow, *, fenced: bool) -> None:
    # If fenced, so that none of them is sent before.
    client = ClientSettings({**flow.kafka, "linger.ms": 900 if fenced else 0})
    with writer(flow, client=client) as writing:
        before = open_producers()
        for _attempt in range(5):
            writing.add(rows(flow, 0, *range(3_000)))
            if fenced:
                with flow.connections() as connections:
                    name = writing._producer.identity.transactional_id
                    fence_producer(connections, name, 60_000, deadline())
                failure = refused(flow, writing, KafkaError(KafkaError._FENCED).name())
                assert (failure.again, failure.too_slow) == (True, False)
            writing.abort()
        assert open_producers() == before


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_producer_whose_records_stay_unanswered_is_closed(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    lost = proxy.on(ProduceRequest, DropRequest(), times=None)
    with writer(proxied_flow) as writing:
        before = open_producers()
        writing.add(rows(proxied_flow, 0, 0))
        while not lost.hits:
            time.sleep(0.01)
        writing.abort()
        assert open_producers() == before
