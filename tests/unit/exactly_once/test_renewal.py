"""Renewal of a group's offsets while no batch is running."""

import logging
from contextlib import closing

import pytest

from spark_eos._client.settings import ClientSettings
from spark_eos._delivery.renewal import renew_unattended
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline


def test_an_unattended_renewal_failure_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_eos")
    settings = ClientSettings({"bootstrap.servers": "127.0.0.1:9"})
    with closing(Connections(settings)) as connections:
        renew_unattended(connections, "group", Deadline(0.3, "connect_timeout_ms"))
    assert "group group: offsets are not renewed: no broker of bootstrap.servers" in caplog.text
