"""The end of a run whose cancelled tasks may continue for a moment."""

import logging
import threading
import time
from typing import Any

import pytest
from kafka.protocol.producer import InitProducerIdRequest

from spark_eos._checks import open_transactions
from spark_eos._client.error_codes import Code
from spark_eos._kafka.protocol import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from support import proxy_faults as faults
from support.flow import Flow
from support.members import started
from support.proxy import KafkaProxy
from support.queries import until
from support.runs import running
from support.writing import rows, transactions


@pytest.mark.slow
@pytest.mark.parametrize("aside", [False, True], ids=["waited for", "aside"])
def test_what_cancelled_tasks_leave_open_is_ended(flow: Flow, aside: bool) -> None:  # noqa: FBT001
    with running(flow) as older:
        older.batch(1, 1)
        with transactions(flow, older.run._membership) as writing:
            writing.add(rows(flow, 0, 1))
            writing.commit()
            writing.add(rows(flow, 0, 2))
            until(flow.open_transactions, lambda: "an open transaction")
            older.run.leave(task_kill_grace_s=0.5, background=aside)
            sweeps = _sweeps(flow)
            # If Python exits now, it waits for a sweep in the background.
            assert [thread.daemon for thread in sweeps] == [False] * aside
            for thread in sweeps:
                thread.join(60)
            assert flow.open_transactions() == []
            assert flow.members() == []
    assert flow.committed() == {0: 2, 1: 1}


def _sweeps(flow: Flow) -> list[threading.Thread]:
    name = f"spark-eos-sweep-{flow.group_id}"
    return [thread for thread in threading.enumerate() if thread.name == name]


@pytest.mark.slow
def test_what_a_task_opens_before_it_has_stopped_is_ended_too(flow: Flow) -> None:
    with running(flow) as older:
        older.batch(1, 1)
        with transactions(flow, older.run._membership) as writing:
            older.run.leave(task_kill_grace_s=6, background=True)
            (sweep,) = _sweeps(flow)
            # The first look is over, and has found nothing.
            time.sleep(1)
            writing.add(rows(flow, 0, 1))
            # A first look that was late has ended it.
            until(
                lambda: flow.open_transactions() or not sweep.is_alive(),
                lambda: "an open transaction",
            )
            sweep.join(60)
            assert flow.open_transactions() == []
    assert flow.committed() == {0: 1, 1: 1}


def test_what_a_newer_run_has_open_is_left_alone(flow: Flow) -> None:
    with running(flow) as older:
        older.batch(1, 1)
        with started(flow) as newer, transactions(flow, newer) as writing:
            writing.add(rows(flow, 0, 1))
            until(flow.open_transactions, lambda: "an open transaction")
            older.run.leave(task_kill_grace_s=0.5)
            assert flow.open_transactions() != []
            writing.commit()
    assert flow.committed() == {0: 2, 1: 1}


def test_what_can_not_be_ended_is_left_to_time_out(
    proxied_flow: Flow, proxy: KafkaProxy, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_request: Any, answer: Any) -> None:
        answer.groups[0].error_code = Code.GROUP_AUTHORIZATION_FAILED

    with caplog.at_level(logging.INFO, "spark_eos"), running(proxied_flow) as runs:
        runs.batch(1, 1)
        proxy.on(ConsumerGroupDescribeRequest, faults.Rewrite(refused), times=None)
        runs.run.leave(task_kill_grace_s=0.5)
    assert "are left to time out: describing group" in caplog.text


def test_a_transaction_not_ended_in_time_is_left_to_the_brokers(
    proxied_flow: Flow,
    proxy: KafkaProxy,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_transactions, "_END_TIMEOUT", 0.2)
    with (
        caplog.at_level(logging.INFO, "spark_eos"),
        running(proxied_flow) as runs,
    ):
        runs.batch(1, 1)
        with transactions(proxied_flow, runs.run._membership) as writing:
            writing.add(rows(proxied_flow, 0, 1))
            (name,) = until(proxied_flow.open_transactions, lambda: "an open transaction")
            proxy.on(InitProducerIdRequest, faults.DropRequest(), times=None)
            runs.run.leave(task_kill_grace_s=0.1)
            proxy.reset()
    assert f"the open transaction of {name} is left to the brokers: " in caplog.text
    assert "open transactions are left" not in caplog.text


def test_a_run_leaves_until_its_members_have_left(proxied_flow: Flow, proxy: KafkaProxy) -> None:
    """On Connect, a signal in the meantime must not wait for it in the same thread."""
    with running(proxied_flow) as runs:
        runs.batch(1, 1)
        runs.delay_heartbeats()
        go_on = threading.Event()
        held = proxy.on(ConsumerGroupHeartbeatRequest, faults.HoldRequest(go_on))
        leaves = threading.Thread(target=runs.run.leave)
        leaves.start()
        held.await_hit()
        seen = [runs.run.leaving]
        go_on.set()
        leaves.join(60)
        assert not leaves.is_alive()
        assert [*seen, runs.run.leaving] == [True, False]
    assert proxied_flow.members() == []
