"""More offsets than fit into one request to the broker."""

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka.protocol.consumer import OffsetCommitRequest

from spark_eos._kafka import offsets
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from support.flow import Flow
from support.groups import positions
from support.members import deadline, started
from support.runs import running
from support.writing import rows, sent_requests, transactions


def test_many_offsets_go_in_several_requests(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(flow) as runs:
        runs.batch(5, 5)
        monkeypatch.setattr(offsets, "_REQUEST_BYTES", 300)
        requests = sent_requests(monkeypatch)
        runs.batch(9, 9, without_output=4)
        assert _partitions(requests, OffsetCommitRequest) == [[0], [1]]
        assert flow.committed() == {0: 9, 1: 9}


def _partitions(requests: list[Any], kind: Any) -> list[list[int]]:
    """The partitions in each request of a kind."""
    sent = [r.message() for r in requests if r.api_key == kind.API_KEY]
    return [[p.partition_index for t in m.topics for p in t.partitions] for m in sent]


def test_a_transactions_offsets_go_in_several_requests(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "_REQUEST_BYTES", 300)
    with started(flow) as membership, transactions(flow, membership) as writing:
        writing.add(rows(flow, 0, 0, 1))
        writing.add(rows(flow, 1, 0))
        requests = sent_requests(monkeypatch)
        writing.commit()
    # One of each, in one transaction of one member.
    assert _partitions(requests, TxnOffsetCommitRequest) == [[0], [1]]
    assert flow.committed() == {0: 2, 1: 1}
    assert flow.merged_values() == ["0/0", "0/1", "1/0"]


@pytest.mark.slow
def test_one_transaction_commits_the_offsets_of_230_topics(flow: Flow) -> None:
    flow.partitions = 3
    topics = [f"{flow.source}-{n}" for n in range(230)]
    admin = AdminClient({"bootstrap.servers": flow.bootstrap_servers})
    for made in admin.create_topics([NewTopic(name, 3) for name in topics]).values():
        made.result(60)
    flow.broker.add_partitions(flow.source, 3)
    with started(flow, also=topics) as membership:
        partitions = membership.assignment().partitions
        assert len(partitions) == 231 * 3
        known = KnownPartitions().including(partitions, membership.topic_ids)
        with transactions(flow, membership, known=known) as writing:
            for topic, partition in sorted(partitions):
                writing.add(rows(flow, partition, 0, source_topic=topic))
            writing.commit()
        with flow.connections() as connections:
            # Waits until the broker has written the transaction's marker.
            found = offsets.group_offsets(
                connections, flow.group_id, partitions, membership.topic_ids, deadline()
            )
    assert positions(found) == dict.fromkeys(partitions, 1)
