"""Queries that are idle for longer than brokers remember transactional ids and producers.

Kafka forgets both after days; the broker here does so after seconds.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_eos._checks import preflight
from spark_eos._client.error_codes import Code
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.open_transactions import describe_transaction
from spark_eos._kafka.transactional_ids import driver_id
from spark_eos._kafka.transactions import fence_producer
from spark_eos._worker import producer
from spark_eos.errors import KafkaResponseError
from spark_eos.testing import EmbeddedKafka
from support.flow import Flow
from support.members import deadline
from support.queries import until
from support.runs import running

_FORGETFUL = {
    "transactional.id.expiration.ms": "1000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    "producer.id.expiration.ms": "1000",
    "producer.id.expiration.check.interval.ms": "200",
}


@pytest.fixture(scope="module")
def forgetful() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(properties=_FORGETFUL) as broker:
        yield broker


def _known(connections: Connections, transactional_id: str) -> bool:
    try:
        describe_transaction(connections, transactional_id, deadline())
    except KafkaResponseError as error:
        if error.code != Code.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        return False
    return True


def _await_forgotten(flow: Flow, name: str) -> None:
    with flow.connections() as connections:
        until(lambda: not _known(connections, name), lambda: f"{name} to be forgotten")


@pytest.mark.slow
def test_an_idle_worker_continues_without_another_attempt(
    forgetful: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "_IDLE", 0.5)
    flow = Flow(forgetful, str(tmp_path / "c"), str(tmp_path / "w"))
    with running(flow) as runs:
        runs.batch(5, 5)
        (worker,) = runs.producers()
        first = worker.identity
        _await_forgotten(flow, first.transactional_id)
        assert runs.batch(10, 10).attempts == 1
        assert worker.identity.transactional_id == first.transactional_id
        assert worker.identity.producer_id != first.producer_id
        runs.written_once(10, 10)


def test_the_drivers_ids_are_created_again(
    forgetful: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(forgetful, str(tmp_path / "c"), str(tmp_path / "w"))
    name = driver_id("spark-eos", flow.group_id)
    made: list[int] = []

    def fence(connections: Connections, transactional_id: str, *limits: Any) -> None:
        fence_producer(connections, transactional_id, *limits)
        # Before the broker forgets it.
        assert transactional_id == name
        made.append(describe_transaction(connections, name, deadline()).producer_id)

    monkeypatch.setattr(preflight, "fence_producer", fence)
    with running(flow) as runs:
        runs.batch(5, 5)
    _await_forgotten(flow, name)
    with running(flow, checkpoint=runs.checkpoint) as runs:
        runs.batch(10, 10)
        runs.written_once(10, 10)
    assert len(set(made)) == len(made) == 2
