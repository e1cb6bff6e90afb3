"""Renewal of a group's offsets while no batch is running."""

import gc
import logging
import threading
import time
from contextlib import closing

import pytest

from spark_eos._client.settings import ClientSettings
from spark_eos._delivery import renewal
from spark_eos._delivery.renewal import renew_unattended
from spark_eos._exactly_once import offsets
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._worker.writer_settings import WriterSettings
from support.client_settings import SERVERS


def test_an_unattended_renewal_failure_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_eos")
    settings = ClientSettings({"bootstrap.servers": "127.0.0.1:9"})
    with closing(Connections(settings)) as connections:
        renew_unattended(connections, "group", Deadline(0.3, "connect_timeout_ms"))
    assert "group group: offsets are not renewed: no broker of bootstrap.servers" in caplog.text


def test_a_renewal_ends_with_its_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = threading.Event()
    monkeypatch.setattr(offsets, "RENEWED_AFTER", 0.05)
    monkeypatch.setattr(renewal, "renew_unattended", lambda *_: renewed.set())
    settings = WriterSettings(client=ClientSettings(SERVERS), group_id="of-a-test", topic="t")
    renewal.renew_hourly(settings)
    name = "spark-eos-renewal-of-a-test"
    assert renewed.wait(20)
    assert name in {thread.name for thread in threading.enumerate()}
    del settings
    gc.collect()
    end = time.monotonic() + 20
    while name in {thread.name for thread in threading.enumerate()}:
        assert time.monotonic() < end
        time.sleep(0.02)
