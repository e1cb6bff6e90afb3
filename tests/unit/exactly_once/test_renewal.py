"""Renewal of a group's offsets while no batch is running."""

import gc
import logging
import threading
import time
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spark_eos import ExactlyOnceSink
from spark_eos._client.settings import ClientSettings
from spark_eos._delivery import renewal
from spark_eos._delivery.renewal import renew_unattended
from spark_eos._exactly_once import offsets
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._worker.writer_settings import WriterSettings
from support.client_settings import SERVERS
from support.queries import until


def test_an_unattended_renewal_failure_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_eos")
    settings = ClientSettings({"bootstrap.servers": "127.0.0.1:9"})
    with closing(Connections(settings)) as connections:
        renew_unattended(connections, "group", Deadline(0.3, "connect_timeout_ms"))
    assert "group group: offsets are not renewed: no broker of bootstrap.servers" in caplog.text


@pytest.fixture
def renewed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set by each renewal."""
    found = threading.Event()
    monkeypatch.setattr(offsets, "RENEWED_AFTER", 0.05)
    monkeypatch.setattr(renewal, "renew_unattended", lambda *_: found.set())
    return found


def _settings(group_id: str) -> WriterSettings:
    return WriterSettings(client=ClientSettings(SERVERS), group_id=group_id, topic="t")


def _renewals(group_id: str) -> int:
    """The number of threads that renew the group's offsets."""
    names = [thread.name for thread in threading.enumerate()]
    return names.count(f"spark-eos-renewal-{group_id}")


def _until_ended(group_id: str) -> None:
    until(lambda: _renewals(group_id) == 0, lambda: "the end of the renewal")


def test_a_renewal_ends_with_its_sink(renewed: threading.Event) -> None:
    settings = _settings("of-a-test")
    renewal.renew_hourly(settings)
    assert renewed.wait(20)
    assert _renewals("of-a-test") == 1
    del settings
    gc.collect()
    _until_ended("of-a-test")
    # A later sink's begins again.
    settings = _settings("of-a-test")
    renewed.clear()
    renewal.renew_hourly(settings)
    assert renewed.wait(20)
    renewal.end_renewal(settings)
    _until_ended("of-a-test")


def test_a_second_sink_that_is_gone_ends_no_renewal(renewed: threading.Event) -> None:
    settings = _settings("of-two")
    renewal.renew_hourly(settings)
    renewal.renew_hourly(replace(settings))
    gc.collect()
    time.sleep(0.2)
    renewed.clear()
    assert renewed.wait(20)
    renewal.end_renewal(settings)
    _until_ended("of-two")


@pytest.mark.parametrize("first", [0, 1])
def test_a_closed_sink_leaves_the_renewal_to_the_other(
    renewed: threading.Event, first: int
) -> None:
    sinks = [_settings("of-both") for _ in range(2)]
    for settings in sinks:
        renewal.renew_hourly(settings)
    renewal.end_renewal(sinks[first])
    time.sleep(0.2)
    renewed.clear()
    assert renewed.wait(20)
    assert _renewals("of-both") == 1
    renewal.end_renewal(sinks[1 - first])
    _until_ended("of-both")


def test_the_newest_sink_in_use_renews() -> None:
    one, two = _settings("g"), _settings("g")
    users = renewal._Renewal()
    for settings in (one, two):
        users.add(settings)
        assert users.newest() is settings
    users.add(one)
    assert users.newest() is one
    users.remove(one)
    assert users.newest() is two
    del two, settings
    gc.collect()
    assert users.newest() is None


def test_a_query_that_starts_has_its_offsets_renewed() -> None:
    """Its sink may have read nothing."""
    sink = ExactlyOnceSink(
        kafka=SERVERS, group_id="of-a-start", topic="t", checkpoint_location="/nowhere"
    )
    query: Any = SimpleNamespace(settings=sink._settings)
    started: Any = SimpleNamespace(runId="run-of-a-start")
    checks: Any = None
    sink._batches.note_started(query, started, checks)
    assert _renewals("of-a-start") == 1
    sink.close()
    _until_ended("of-a-start")


def test_a_query_starts_even_without_a_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    settings = _settings("without-a-thread")
    with caplog.at_level(logging.INFO):
        renewal.renew_hourly(settings)
    assert "offsets are not renewed: can't start new thread" in caplog.text
    renewal.end_renewal(settings)
