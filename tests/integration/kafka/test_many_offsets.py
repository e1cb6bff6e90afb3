"""More offsets than a request of the broker's may hold."""

import pytest

from spark_eos.kafka import offsets
from support.flow import Flow
from support.runs import running


def test_many_offsets_go_in_several_requests(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "_REQUEST_BYTES", 300)
    with running(flow) as runs:
        runs.batch(5, 5, without_output=5)
        assert flow.committed() == {0: 5, 1: 5}
