"""Offsets by topic id (v6), or by name (v5) if a topic's id is unknown."""

import dataclasses
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from spark_eos._client.settings import ClientSettings
from spark_eos._exactly_once.transaction import TransactionWriter
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.offsets import commit_offsets, group_offsets
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import txn_offset_commit
from spark_eos.testing import EmbeddedKafka
from support.flow import Flow
from support.groups import positions
from support.members import deadline, started
from support.proxy_faults import Request
from support.versions import needs_topic_ids
from support.writing import rows, sent_requests, transactions

_KEY = TxnOffsetCommitRequest.API_KEY
_NULL = uuid.UUID(int=0)


@pytest.fixture
def other(embedded_kafka: EmbeddedKafka) -> str:
    """A second source topic; created before the flow's, since a group may miss the newest topic."""
    name = f"other-{uuid.uuid4().hex[:10]}"
    embedded_kafka.create_topic(name, partitions=2)
    return name


@contextmanager
def _two_topics(flow: Flow, other: str) -> Iterator[TransactionWriter]:
    """A transaction with rows of both topics, which one member owns."""
    with started(flow, also=[other]) as membership, transactions(flow, membership) as writing:
        writing.add(rows(flow, 0, 0, 1))
        writing.add(rows(flow, 1, 4, source_topic=other))
        yield writing


def _committing(requests: list[Request]) -> list[Request]:
    return [request for request in requests if request.api_key == _KEY]


def _set_id(writing: TransactionWriter, topic: str, topic_id: Any) -> None:
    """Like a plan for which the cluster returned no id for the topic."""
    writing._plan = {
        source: dataclasses.replace(plan, topic_id=topic_id) if source.topic == topic else plan
        for source, plan in writing._plan.items()
    }


@needs_topic_ids
def test_topics_with_ids_go_by_id(other: str, flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = sent_requests(monkeypatch)
    with _two_topics(flow, other) as writing:
        ids = [plan.topic_id.bytes for plan in writing._plan.values()]
        writing.commit()
    (request,) = _committing(requests)
    assert request.version == 6
    assert all(topic_id in request.content for topic_id in ids)
    assert flow.source.encode() not in request.content
    assert other.encode() not in request.content
    assert flow.committed() == {0: 2}


@needs_topic_ids
@pytest.mark.parametrize("missing", [None, _NULL], ids=["no id", "null id"])
def test_one_missing_id_sends_the_whole_request_by_name(
    other: str, flow: Flow, missing: uuid.UUID | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = sent_requests(monkeypatch)
    with _two_topics(flow, other) as writing:
        known = writing._plan[TopicPartition(flow.source, 0)].topic_id
        _set_id(writing, other, missing)
        writing.commit()
        (request,) = _committing(requests)
        assert request.version == 5
        assert flow.source.encode() in request.content
        assert other.encode() in request.content
        assert known.bytes not in request.content
        assert flow.committed() == {0: 2}
        # The next request has no part of the topic whose id is not known: by id again.
        writing.add(rows(flow, 0, 2))
        writing.commit()
        assert [f.version for f in _committing(requests)] == [5, 6]
        assert flow.committed() == {0: 3}


@pytest.mark.parametrize("missing", [None, _NULL], ids=["no id", "null id"])
def test_offsets_outside_a_transaction_go_by_name_without_an_id(
    flow: Flow, missing: uuid.UUID | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {TopicPartition(flow.source, 0): 7, TopicPartition(flow.source, 1): 9}
    with started(flow) as membership, flow.connections() as connections:
        member = membership.assignment().member
        requests = sent_requests(monkeypatch)
        found: list[Any] = []
        for ids in ({flow.source: missing}, {}, membership.topic_ids):
            codes = commit_offsets(connections, flow.group_id, member, wanted, ids, deadline())
            assert codes == dict.fromkeys(wanted, 0)
            offsets = group_offsets(connections, flow.group_id, wanted, ids, deadline())
            found.append(positions(offsets))
    assert found == [wanted] * 3
    for key in (OffsetCommitRequest.API_KEY, OffsetFetchRequest.API_KEY):
        assert [f.version for f in requests if f.api_key == key] == [9, 9, 10]


def test_answers_are_read_with_the_ids_of_their_request(flow: Flow) -> None:
    with started(flow) as membership, transactions(flow, membership) as writing:
        ids: dict[str, uuid.UUID | None] = {**membership.topic_ids}

        class Changing(Connections):
            """The known ids change while the request is on its way."""

            def ask_coordinator(self, *arguments: Any, **options: Any) -> Any:
                ids.update(
                    {flow.source: uuid.uuid4(), "another": membership.topic_ids[flow.source]}
                )
                return super().ask_coordinator(*arguments, **options)

        writing.add(rows(flow, 0, 0))
        writing._producer.records.flush(deadline())
        with closing(Changing(ClientSettings(flow.kafka))) as connections:
            codes = txn_offset_commit(
                connections,
                flow.group_id,
                writing._producer.identity,
                writing._member,
                {TopicPartition(flow.source, 0): 1},
                ids,
                deadline(),
                lambda: None,
            ).codes
        assert codes == {(flow.source, 0): 0}
        writing.abort()
