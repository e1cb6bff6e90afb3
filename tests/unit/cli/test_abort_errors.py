"""How `spark-eos abort` ends if not all transactions could be ended."""

from typing import Any

import click
import pytest

from spark_eos._cli import abort
from spark_eos._cli.query import Query
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.open_transactions import OpenTransaction
from spark_eos.errors import SparkEosError
from support.client_settings import SERVERS


def test_transactions_that_could_not_be_ended_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_connections: object, transactional_id: str, *_: object) -> None:
        if transactional_id != "b":
            raise SparkEosError("refused")

    monkeypatch.setattr(abort, "fence_producer", refused)
    query = Query(ClientSettings(SERVERS), 1.0, SERVERS, "group", "spark-eos")
    open_ = [OpenTransaction(name, "Ongoing", None, 60_000, 1, 0, ()) for name in "abc"]
    nothing: Any = None
    with pytest.raises(click.ClickException, match=r"\b2 of 3 open transactions$"):
        abort._end(nothing, query, open_)
