"""How `run` and jobs wait for queries, and what they restore in the process."""

import logging
import sys
import time
from types import SimpleNamespace
from typing import Any

import click
import pytest
from pyspark.errors import PySparkException

from spark_eos.jobs import job, running


def test_the_last_thread_restores_the_log_level() -> None:
    py4j = logging.getLogger("py4j")
    before = py4j.level
    first, second = running._py4j_quiet(), running._py4j_quiet()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert py4j.level == logging.CRITICAL
    second.__exit__(None, None, None)
    assert py4j.level == before


class StreamingQuery:
    """Named like Spark's class; ends after it has been polled a few times."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802 - Spark's name
        self.waits.append(seconds)
        return len(self.waits) > 2


def test_at_a_prompt_ctrl_c_interrupts_no_call_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    query: Any = StreamingQuery()
    naps: list[float] = []
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    monkeypatch.setattr(time, "sleep", naps.append)
    running.run(query)
    # It is in a call for a thousandth of the time.
    assert query.waits == [0.001] * 3
    assert naps == [1] * 3


def test_a_server_that_is_gone_is_a_message() -> None:
    def fail(*_: object) -> None:
        raise PySparkException("StatusCode UNAVAILABLE")

    query: Any = SimpleNamespace(awaitTermination=fail, isActive=False, stop=fail)
    closed: list[str] = []
    sink: Any = SimpleNamespace(close=lambda: closed.append("sink"))
    with pytest.raises(click.ClickException, match="StatusCode UNAVAILABLE"):
        job._wait(query, sink, running.StopSignals())
    assert closed == ["sink"]
