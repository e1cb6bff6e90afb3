"""A driver's requests to brokers in each batch when there are no faults."""

from collections import Counter

import pytest
from kafka.protocol.admin import ListTransactionsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import MetadataRequest

from spark_eos._exactly_once import offsets as group_offsets
from spark_eos._exactly_once import transaction
from support.flow import Flow
from support.members import started
from support.proxied_worker import unstable
from support.proxy import KafkaProxy
from support.proxy_faults import Rewrite
from support.runs import running
from support.versions import CHECKS
from support.writing import sent_requests

_ASKED = (MetadataRequest, OffsetFetchRequest, OffsetCommitRequest)


def test_a_batchs_end_is_committed_only_if_its_tasks_have_not(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A transaction that takes longer looks at its topics again.
    monkeypatch.setattr(transaction, "_LONG", 60.0)
    sent = sent_requests(monkeypatch)

    def asked() -> list[int]:
        counts = Counter(request.api_key for request in sent)
        sent.clear()
        return [counts[each.API_KEY] for each in _ASKED]

    with running(flow) as runs:
        runs.batch(5, 5)
        asked()
        runs.batch(10, 10)
        assert asked() == [2 * CHECKS, 0, 0]
        # Of two partitions, in one request.
        runs.batch(15, 15, without_output=1)
        assert asked() == [3 * CHECKS, 0, 1]
        runs.batch(20, 20)
        assert asked() == [2 * CHECKS, 0, 0]
    # At the end, so that they expire as late as they may: once brokers have ended the transactions.
    metadata, reads, commits = asked()
    assert reads
    assert (metadata, commits) == (CHECKS, 1)


def test_a_group_in_which_nothing_happens_has_not_changed(flow: Flow) -> None:
    with started(flow) as members:
        # The second tells brokers of what the first was assigned.
        for _ in range(2):
            members._heartbeat()
        assert members._acknowledged()
        assert not members.changed
        assert not members.ended


def test_transactions_that_are_ending_are_looked_up_once(
    proxied_flow: Flow, proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_offsets, "_SETTLING", 60.0)

    with running(proxied_flow) as runs:
        rule = proxy.on(OffsetFetchRequest, Rewrite(unstable), times=3)
        runs.batch(5, 5)
        assert len(rule.hits) == 3
        assert proxy.count(ListTransactionsRequest) == 1
