"""Brokers that return advertised addresses at which they don't answer."""

import contextlib
import copy
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest

from spark_eos._client.settings import ClientSettings
from spark_eos._kafka import connection
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.list_offsets import FirstOffsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import DeadlineExceededError
from spark_eos.verify.cluster import Cluster
from support.flow import Flow
from support.proxy import KafkaProxy
from support.proxy_faults import Rewrite


@pytest.fixture(
    params=[
        pytest.param("kafka-1.nowhere.invalid:9092", marks=pytest.mark.slow),
        pytest.param("127.0.0.1:1", marks=pytest.mark.slow),
        "silent",
    ]
)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """An address that does not resolve, one that refuses connections, one that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = f"127.0.0.1:{server.getsockname()[1]}"
        yield silent if request.param == "silent" else request.param


def _advertised(address: str) -> Rewrite:
    def change(_request: Any, answer: Any) -> None:
        for broker in answer.brokers:
            host, _, port = address.rpartition(":")
            broker.host, broker.port = host, int(port)

    return Rewrite(change)


def _asked(settings: ClientSettings) -> None:
    with contextlib.closing(Connections(settings)) as connections:
        connections.brokers(Deadline(2, "connect_timeout_ms"))


def _verified(settings: ClientSettings) -> None:
    Cluster(settings, 2).close()


@pytest.mark.parametrize("open_", [_asked, _verified])
def test_the_address_and_the_setting_are_named(
    open_: Callable[[ClientSettings], None],
    address: str,
    proxied_flow: Flow,
    proxy: KafkaProxy,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert connection._SILENT < 3
    monkeypatch.setattr(connection, "_SILENT", 0.5)
    proxy.on(MetadataRequest, _advertised(address), times=None)
    with pytest.raises(DeadlineExceededError, match=rf"{address}\b.*advertised\.listeners"):
        open_(ClientSettings(proxied_flow.kafka))
    warned = [r for r in caplog.records if r.levelno == logging.WARNING]
    # The verifier waits for as long as --timeout says.
    assert len(warned) == (open_ is _asked)
    for record in warned:
        assert address in record.getMessage()
        assert "advertised.listeners" in record.getMessage()


def test_the_broker_that_does_not_answer_is_named(
    address: str, proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    """A second broker leads the partition, but does not answer at its address."""
    host, _, port = address.rpartition(":")

    def change(_request: Any, answer: Any) -> None:
        second = copy.copy(answer.brokers[0])
        second.node_id, second.host, second.port = 2, host, int(port)
        answer.brokers.append(second)
        for topic in answer.topics:
            for partition in topic.partitions:
                partition.leader_id = 2

    proxy.on(MetadataRequest, Rewrite(change), times=None)
    partition = TopicPartition(proxied_flow.source, 0)
    with (
        proxied_flow.connections() as connections,
        pytest.raises(DeadlineExceededError, match=rf"{address}\b.*advertised\.listeners"),
    ):
        FirstOffsets(connections).of([partition], Deadline(2, "group_timeout_ms"))
