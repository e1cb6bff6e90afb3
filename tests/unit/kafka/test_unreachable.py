"""A cluster that does not answer: the log says so long before the wait ends."""

import contextlib
import logging

import pytest

from spark_eos._client.settings import ClientSettings
from spark_eos._kafka import cluster, connection
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos.errors import DeadlineExceededError
from support.client_settings import SERVERS


def test_what_is_waited_for_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connection._SILENT < 3
    monkeypatch.setattr(connection, "_SILENT", 1)
    server = "127.0.0.1:1"
    settings = ClientSettings({**SERVERS, "bootstrap.servers": server})
    with (
        contextlib.closing(Connections(settings)) as connections,
        pytest.raises(DeadlineExceededError, match=f"no broker of .*{server}"),
    ):
        cluster.cluster_id(connections, Deadline(4, "connect_timeout_ms"))
    (found,) = caplog.records
    assert found.levelno == logging.WARNING
    assert found.getMessage().startswith(
        f"waiting for a broker of bootstrap.servers='{server}', up to 4 s (connect_timeout_ms): "
        f"{server} (PLAINTEXT): "
    )
    assert "ECONNREFUSED" in found.getMessage()
