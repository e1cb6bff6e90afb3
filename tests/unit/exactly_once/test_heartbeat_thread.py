"""The heartbeat thread: when it checks for due heartbeats, how it ends, and what it logs."""

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from spark_eos._client.settings import ClientSettings
from spark_eos._exactly_once import members
from spark_eos._exactly_once.members import GroupMembership, HeartbeatThread, Member
from spark_eos._kafka.connection import Connections
from spark_eos.errors import AuthenticationError, DeadlineExceededError


def _thread(heartbeat: Callable[[], None]) -> HeartbeatThread:
    """A thread whose heartbeats are always due."""
    thread = HeartbeatThread(
        "group",
        heartbeat=heartbeat,
        due=lambda _waited: True,
        watch=lambda: True,
        at_end=lambda: None,
        each_heartbeat=lambda: None,
    )
    thread.interval = 0.01
    return thread


def _after(*answers: Exception | None) -> None:
    """Runs a thread until its heartbeats have had these answers."""
    left = iter(answers)
    over = threading.Event()

    def heartbeat() -> None:
        try:
            answer = next(left)
        except StopIteration:
            over.set()
            return
        if answer is not None:
            raise answer

    thread = _thread(heartbeat)
    thread.start()
    assert over.wait(10)
    thread.stop()
    thread.join(10)


def test_refused_heartbeats_are_logged_once_until_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = AuthenticationError("wrong password")
    _after(refused, refused, refused, None, refused, refused)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


def test_each_time_without_answers_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_SESSION_TIMEOUT", 0.0)
    away = DeadlineExceededError("no answer")
    _after(away, None, away, away, None)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_the_thread_is_waited_for_unless_it_waits_itself() -> None:
    begun, returned, ended = threading.Event(), threading.Event(), threading.Event()

    def heartbeat() -> None:
        begun.set()
        thread.join(10)
        returned.set()
        time.sleep(0.3)
        ended.set()

    thread = _thread(heartbeat)
    thread.join(10)  # It has not started.
    thread.start()
    assert begun.wait(10)
    thread.stop()
    thread.join(10)
    assert returned.is_set()
    assert ended.is_set()


def test_a_new_assignment_is_acknowledged_at_once() -> None:
    with closing(Connections(ClientSettings({"bootstrap.servers": "127.0.0.1:1"}))) as connections:
        membership = GroupMembership(
            connections,
            "group",
            group_timeout_ms=1_000,
            watch=lambda: True,
            at_end=lambda: None,
        )
        # Before the member has joined, only the interval counts.
        assert [membership._is_beat_due(waited) for waited in (0.1, 5.0)] == [False, True]
        member = Member("spark-eos-0", "id", 2, {(uuid.uuid4(), 0): 2})
        membership._member = member
        assert membership._is_beat_due(0.1)
        membership._member = replace(member, acknowledged=member.owned)
        assert not membership._is_beat_due(0.1)


def test_heartbeats_are_sent_in_time_although_the_jvm_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(members, "_LONGEST_PAUSE", 0.05)
    sent: list[float] = []

    def slow_jvm() -> bool:
        time.sleep(0.3)
        return True

    thread = HeartbeatThread(
        "group",
        heartbeat=lambda: sent.append(time.monotonic()),
        due=lambda waited: waited >= 0.2,
        watch=slow_jvm,
        at_end=lambda: None,
        each_heartbeat=lambda: None,
    )
    thread.interval = 0.2
    thread.start()
    time.sleep(3)
    thread.stop()
    thread.join(10)
    # Counting only its own pauses, the thread would send a heartbeat after four of them: 1.4 s.
    assert len(sent) >= 5
