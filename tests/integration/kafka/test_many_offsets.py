"""More offsets than a request of the broker's may hold."""

import pytest
from kafka.protocol.consumer import OffsetCommitRequest

from spark_eos.kafka import offsets
from support.flow import Flow
from support.runs import running
from support.writing import sent_requests


def test_many_offsets_go_in_several_requests(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(flow) as runs:
        runs.batch(5, 5)
        monkeypatch.setattr(offsets, "_REQUEST_BYTES", 300)
        requests = sent_requests(monkeypatch)
        runs.batch(9, 9, without_output=4)
        commits = [r.message() for r in requests if r.api_key == OffsetCommitRequest.API_KEY]
        assert [[p.partition_index for t in c.topics for p in t.partitions] for c in commits] == [
            [0],
            [1],
        ]
        assert flow.committed() == {0: 9, 1: 9}
