"""The keeper as a real process on the real broker; Spark's part is played by the test."""

import contextlib
import copy
import os
import pickle
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from spark_eos import errors
from spark_eos.batch.task_report import DEFERRED, WRITTEN, JobOutcome, PartitionOutcome
from spark_eos.datasource.keeper_messages import Commit
from spark_eos.kafka.open_transactions import describe_transaction
from spark_eos.kafka.protocol import ConsumerGroupHeartbeatRequest
from spark_eos.kafka.transactional_ids import driver_id
from spark_eos.worker.producer import TransactionalProducer
from spark_eos.worker.transaction import Transactions
from support import plan_main
from support.data_sources import keepers, until_kept_no_more
from support.flow import Flow
from support.keeping import Keeping, keeping, kill
from support.members import deadline, started, writer_settings
from support.proxy import KafkaProxy
from support.proxy_faults import HoldAnswer
from support.queries import until
from support.runs import values_up_to
from support.writing import rows


def _of_another_query(kept: Keeping) -> Keeping:
    flow = copy.copy(kept.flow)
    flow.checkpoint += "-2"
    return Keeping(flow, kept.driver)


def test_one_keeper_serves_batch_after_batch(kept: Keeping) -> None:
    flow = kept.flow
    report = kept.batch(0, 3, 5)
    (keeper,) = keepers(flow)
    members = {member.member_id for member in flow.members()}
    assert kept.batch(1, 7, 5).rows_written == 4
    assert (report.rows_written, report.query_run, report.group_id) == (8, "run", flow.group_id)
    assert keepers(flow) == [keeper]
    assert {member.member_id for member in flow.members()} == members
    assert sorted(flow.values()) == values_up_to(7, 5)
    assert flow.committed() == {0: 7, 1: 5}


def test_a_commit_may_be_asked_for_again(kept: Keeping) -> None:
    kept.begin(0, 2, 2)
    commit = kept.written(kept.plan(), 2, 2)
    first = kept.client.commit(commit)
    assert kept.client.commit(commit) == first
    assert kept.batch(1, 3, 3).rows_written == 2
    assert sorted(kept.flow.values()) == values_up_to(3, 3)


def test_a_batch_that_is_repeated_writes_nothing_twice(kept: Keeping) -> None:
    kept.batch(0, 2, 2)
    report = kept.batch(0, 2, 2)
    assert (report.rows_written, report.rows_skipped) == (0, 4)
    assert kept.batch(1, 3, 3).rows_written == 2
    assert sorted(kept.flow.values()) == values_up_to(3, 3)


def test_a_plan_that_was_given_up_fences_its_tasks(kept: Keeping) -> None:
    kept.begin(0, 2, 2)
    stale = kept.plan()
    # The query was stopped and started again, and Spark did not say so.
    planned = kept.plan()
    late = kept.written(stale, 2, 2)
    assert {part.status for part in late.outcome.partitions.values()} == {"rejected"}
    kept.client.commit(kept.written(planned, 2, 2))
    assert sorted(kept.flow.values()) == values_up_to(2, 2)


def test_abort_ends_the_keeper_and_fences_the_tasks(kept: Keeping) -> None:
    kept.begin(0, 2, 2)
    planned = kept.plan()
    kept.client.abort()
    until_kept_no_more(kept.flow)
    late = kept.written(planned, 2, 2)
    assert {part.status for part in late.outcome.partitions.values()} == {"rejected"}
    assert kept.flow.values() == []
    with pytest.raises(errors.WriteError, match="continues exactly once"):
        kept.client.commit(late)
    # And nobody is there to abort anything any more.
    kept.client.abort()


def test_abort_takes_nothing_back(kept: Keeping) -> None:
    kept.batch(0, 2, 2)
    kept.client.abort()
    until_kept_no_more(kept.flow)
    assert kept.flow.committed() == {0: 2, 1: 2}
    assert kept.batch(1, 3, 3).rows_written == 2


def test_the_keeper_ends_with_the_driver(kept: Keeping) -> None:
    kept.batch(0, 2, 2)
    kept.begin(1, 3, 3)
    kept.plan()
    assert len(keepers(kept.flow)) == 1
    kept.driver.kill()
    # Not waited for: a driver whose parent does not look after it is dead all the same.
    until_kept_no_more(kept.flow)


def test_the_keeper_ends_when_no_batch_comes(kept: Keeping) -> None:
    kept.idle_seconds = 0.5
    kept.batch(0, 2, 2)
    until_kept_no_more(kept.flow)
    assert kept.batch(1, 3, 3).rows_written == 2


@pytest.mark.slow
def test_the_keeper_ends_when_nobody_writes_what_it_has_planned(kept: Keeping) -> None:
    """Spark may fail to call abort when a query is stopped."""
    kept.idle_seconds = 0.5
    kept.begin(0, 2, 2)
    kept.plan()
    assert len(keepers(kept.flow)) == 1
    until_kept_no_more(kept.flow)
    assert kept.batch(0, 2, 2).rows_written == 4


@pytest.mark.slow
def test_the_keeper_waits_for_a_long_batch(kept: Keeping) -> None:
    kept.idle_seconds = 0.5
    kept.begin(0, 2, 0)
    planned = kept.plan()
    settings = writer_settings(kept.flow)
    with closing(TransactionalProducer(settings)) as producer:
        writing = Transactions(producer, settings, planned.plan)
        writing.add(rows(kept.flow, 0, 0))
        time.sleep(6)
        writing.abort()
        commit = kept.written(planned, 2)
    assert kept.client.commit(commit).rows_written == 2


def _leaves(beat: Any) -> bool:
    return bool(beat.member_epoch < 0)


def test_a_keeper_that_is_leaving_is_told_to_end(
    proxied_flow: Flow, proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with keeping(proxied_flow, monkeypatch, idle_seconds=0.2) as kept:
        kept.batch(0, 1, 1)
        (keeper,) = keepers(kept.flow)
        assert len(kept.flow.members()) == 2
        go = threading.Event()
        leaving = proxy.on(ConsumerGroupHeartbeatRequest, HoldAnswer(go), where=_leaves)
        leaving.await_hit()
        os.kill(keeper, signal.SIGTERM)
        time.sleep(0.3)
        go.set()
        # Long before their sessions end.
        until_kept_no_more(kept.flow)


@pytest.mark.slow
def test_a_keeper_that_cannot_leave_ends_when_told_twice(
    proxied_flow: Flow, proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    with keeping(proxied_flow, monkeypatch, idle_seconds=0.2) as kept:
        kept.batch(0, 1, 1)
        (keeper,) = keepers(kept.flow)
        leaving = proxy.on(ConsumerGroupHeartbeatRequest, HoldAnswer(go), where=_leaves)
        leaving.await_hit()
        for _ in range(2):
            os.kill(keeper, signal.SIGTERM)
            time.sleep(0.3)
        until(lambda: not keepers(kept.flow), lambda: "the keeper's end")
        go.set()
        with started(kept.flow):
            pass


def test_a_keeper_that_was_killed_is_replaced(kept: Keeping) -> None:
    kept.batch(0, 2, 2)
    kept.begin(1, 3, 3)
    planned = kept.plan()
    kill(keepers(kept.flow))
    commit = kept.written(planned, 3, 3)
    with pytest.raises(errors.WriteError, match="ended while the batch was written"):
        kept.client.commit(commit)
    assert kept.batch(1, 3, 3).rows_skipped == 2
    assert sorted(kept.flow.values()) == values_up_to(3, 3)


def test_a_run_that_was_overtaken_is_told_so_and_does_not_fight_back(
    kept: Keeping, flow: Flow
) -> None:
    kept.batch(0, 2, 2)
    kept.begin(1, 3, 3)
    older = kept.plan()
    first = keepers(flow)
    # The same group with another checkpoint: another query.
    newer = _of_another_query(kept)
    newer.begin(0, 3, 3)
    planned = newer.plan()
    with pytest.raises(errors.FencedByNewerRunError, match="taken over by a newer run"):
        kept.client.commit(kept.written(older, 3, 3))
    until(lambda: not set(first) & set(keepers(flow)), lambda: "the older keeper's end")
    newer.client.commit(newer.written(planned, 3, 3))
    assert sorted(flow.values()) == values_up_to(3, 3)


def test_an_overtaken_run_is_told_so_in_its_next_batch(kept: Keeping, flow: Flow) -> None:
    kept.batch(0, 2, 2)
    newer = _of_another_query(kept)
    newer.batch(0, 3, 3)
    kept.begin(1, 4, 4)
    # By the plan if a heartbeat has noticed, or else because its tasks are refused.
    with pytest.raises(errors.FencedByNewerRunError):
        kept.client.commit(kept.written(kept.plan(), 4, 4))
    assert newer.batch(1, 4, 4).rows_written == 2
    assert sorted(flow.values()) == values_up_to(4, 4)


def test_what_a_repeated_task_left_is_for_the_next_start(kept: Keeping, flow: Flow) -> None:
    kept.begin(0, 2, 2)
    commit = kept.written(kept.plan(), 2)
    lacking = PartitionOutcome(DEFERRED, reason="a repeated attempt")
    commit.outcome.partitions[flow.source, 1] = lacking
    commit.outcome.reason = lacking.reason
    with pytest.raises(errors.WriteError, match=r"in-\w+-1: a repeated attempt.*start the query"):
        kept.client.commit(commit)
    # What has no rows yet is committed as what it is.
    assert flow.committed() == {0: 2, 1: 0}
    assert kept.batch(0, 2, 2).rows_written == 2
    assert sorted(flow.values()) == values_up_to(2, 2)


def test_another_batch_than_the_planned_one_is_not_committed(kept: Keeping, flow: Flow) -> None:
    kept.begin(0, 2, 2)
    kept.plan()
    outcome = JobOutcome({(flow.source, 0): PartitionOutcome(WRITTEN)})
    with pytest.raises(
        errors.WriteError, match="Spark commits batch 7, but the planned batch is 0"
    ):
        kept.client.commit(Commit(7, "", outcome))
    assert flow.committed() == {0: 0, 1: 0}


def test_changed_settings_count_from_the_next_plan_on(kept: Keeping, flow: Flow) -> None:
    kept.batch(0, 2, 2)
    members = {member.member_id for member in flow.members()}
    assert len(members) == 2
    # A plan that goes back to these members has no such id.
    kept.settings = {"transactional_id_prefix": "changed"}
    kept.batch(1, 3, 3)
    with flow.wire() as wire:
        describe_transaction(wire, driver_id("changed", flow.group_id), deadline())
    others = {member.member_id for member in flow.members()}
    assert len(others) == 2
    assert not members & others
    assert sorted(flow.values()) == values_up_to(3, 3)


def test_errors_arrive_as_what_they_are(kept: Keeping, flow: Flow) -> None:
    kept.begin(0, 2, 2)
    kept.settings = {"topic": "not-there"}
    with pytest.raises(errors.TopicNotFoundError, match="'not-there' does not exist"):
        kept.plan()
    until_kept_no_more(flow)
    error = copy.copy(errors.KafkaResponseError("refused", 30))  # as pickle makes it
    assert (str(error), error.code) == ("refused", 30)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("metadata", errors.CheckpointError, "no streaming checkpoint at checkpoint_location"),
        ("offsets/0", errors.CheckpointError, "no batch has begun"),
        ("sources/0/0", errors.CheckpointError, "sources/0/0 is missing"),
    ],
)
def test_a_checkpoint_that_lacks_something(
    kept: Keeping, name: str, kind: type[Exception], words: str
) -> None:
    kept.begin(0, 2, 2)
    Path(kept.flow.checkpoint, name).unlink()
    with pytest.raises(kind, match=words):
        kept.plan()
    assert kept.flow.members() == []


def test_a_query_with_state_is_refused(kept: Keeping) -> None:
    kept.begin(0, 2, 2)
    Path(kept.flow.checkpoint, "state", "0").mkdir(parents=True)
    with pytest.raises(errors.UnsupportedPipelineError, match="keeps state"):
        kept.plan()


def test_two_processes_that_plan_at_a_time_find_one_keeper(kept: Keeping) -> None:
    kept.begin(0, 2, 2)
    driver = kept.client._driver
    planning = pickle.dumps(plan_main.Planning(driver, kept.request, tempfile.gettempdir()))
    line = [sys.executable, plan_main.__file__]
    with contextlib.ExitStack() as ends:
        processes = [
            ends.enter_context(subprocess.Popen(line, stdin=PIPE, stdout=PIPE)) for _ in range(2)
        ]
        for process in processes:
            ends.callback(process.kill)
            assert process.stdin
            assert process.stdout
            process.stdin.write(planning)
            process.stdin.flush()
            assert process.stdout.readline() == b"ready\n"
        # Each is answered; the later plan fences the earlier one's tasks.
        for process in processes:
            assert process.stdin
            process.stdin.write(b"!")
            process.stdin.flush()
        assert [process.stdout and process.stdout.read() for process in processes] == [b"0\n"] * 2
    assert len(keepers(kept.flow)) == 1


def test_nobody_else_reaches_the_keeper_or_reads_its_settings(kept: Keeping) -> None:
    marker = b"marker-of-a-setting"
    kept.settings = {"transactional_id_prefix": marker.decode()}
    kept.begin(0, 2, 2)
    kept.plan()
    (pid,) = keepers(kept.flow)
    directory = kept.client._path.parent
    files = [file for file in directory.iterdir() if file.is_file()]
    assert directory / "lock" in files
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert marker not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert marker not in Path(f"/proc/{pid}/environ").read_bytes()
    assert not [file for file in files if marker in file.read_bytes()]
