"""The group's offsets are set or deleted while a query runs: the query writes nothing more."""

from collections.abc import Callable

import pytest

from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import FormatVersionError, OffsetsLostError
from support import groups
from support.flow import Flow
from support.manual_members import drop_members
from support.runs import running


def _delete(flow: Flow) -> None:
    groups.delete_offsets(flow.bootstrap_servers, flow.group_id, [TopicPartition(flow.source, 0)])


def _set_to(offset: int) -> Callable[[Flow], None]:
    def change(flow: Flow) -> None:
        partition = TopicPartition(flow.source, 0)
        groups.set_offsets(flow.bootstrap_servers, flow.group_id, {partition: offset})

    return change


@pytest.mark.parametrize("noticed", ["by a heartbeat", "by tasks alone"])
@pytest.mark.parametrize(
    ("change", "now"),
    [
        (_delete, "no offset: somebody has set or deleted"),
        (_set_to(3), "3: somebody has set or deleted"),
        (_set_to(8), "8: a consumer other than spark-eos .* offsets 5 to 7 are not written"),
    ],
    ids=["deleted", "set back", "set on"],
)
def test_what_is_noticed_ends_the_query(
    flow: Flow, change: Callable[[Flow], None], now: str, noticed: str
) -> None:
    def disturb() -> None:
        # With members there are, brokers refuse it.
        drop_members(flow)
        change(flow)

    with running(flow) as runs:
        runs.batch(5, 5)
        runs.delay_heartbeats()
        if noticed == "by a heartbeat":
            disturb()
            runs.notice_the_group()
        while_planned = disturb if noticed == "by tasks alone" else lambda: None
        error = rf"{flow.source}-0 up to 5 and now has {now}"
        with pytest.raises(OffsetsLostError, match=error):
            runs.batch(9, 9, while_planned=while_planned)
    assert len(flow.values()) == 10
    assert flow.open_transactions() == []


def test_another_clients_text_is_cleared_as_the_error_says(flow: Flow) -> None:
    with running(flow) as runs:
        runs.batch(5, 5)
        checkpoint = runs.checkpoint
    partition = TopicPartition(flow.source, 0)
    text = '{"spark-eos":99}'
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, {partition: 5}, {partition: text})
    cure = "another client has written .* offset, 5: set the same offset again"
    with (
        running(flow, checkpoint=checkpoint) as runs,
        pytest.raises(FormatVersionError, match=cure),
    ):
        runs.batch(9, 9)
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, {partition: 5})
    with running(flow, checkpoint=checkpoint) as runs:
        runs.batch(9, 9)
        runs.written_once(9, 9)
