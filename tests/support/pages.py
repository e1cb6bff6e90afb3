"""Reads the project's documentation for tests."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos import ExactlyOnceSink
from support.apis import patiently
from support.flow import Flow
from support.jobs import ROOT


def page(name: str) -> str:
    """A page of docs/."""
    return (ROOT / "docs" / f"{name}.md").read_text()


def code_blocks(name: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page(name), re.DOTALL | re.MULTILINE)


def commands(code: str) -> list[list[str]]:
    """The commands of a block; comments and continuation lines are handled as in a shell."""
    lines = code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def readmes_query(flow: Flow) -> str:
    """Runs README's query with a flow's topics until everything available is read."""
    found = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    (code,) = (block for block in found if "ExactlyOnceSink" in block)
    instead = {
        '"localhost:9092"': repr(flow.bootstrap_servers),
        '"order-processors"': repr(flow.group_id),
        '"orders"': repr(flow.source),
        '"orders-enriched"': repr(flow.target),
        '"checkpoints/orders"': repr(flow.checkpoint),
        'processingTime="1 second"': "availableNow=True",
    }
    return _with_words(code, instead)


def run_query(
    _session: SparkSession, code: str, instead: Mapping[str, str], options: Mapping[str, Any]
) -> None:
    """Runs a block that creates a session and starts a ``query``, until everything is read."""
    names = {"SparkSession": SparkSession, "ExactlyOnceSink": ExactlyOnceSink, "options": options}
    query = patiently(run_block)(code, instead, **names)["query"]
    query.processAllAvailable()
    query.stop()


def run_block(code: str, instead: Mapping[str, str], **names: Any) -> dict[str, Any]:
    """Runs a block with parts of its text replaced; returns its variables."""
    exec(compile(_with_words(code, instead), "a code block", "exec"), names)  # noqa: S102 - that is what it is for
    return names


def end_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries on pages run forever; here, they end when they have read everything available."""

    def await_termination(query: StreamingQuery, _timeout: float | None = None) -> bool:
        try:
            # Which raises what the query has failed with; one that is at its end it leaves alone.
            query.processAllAvailable()
        finally:
            query.stop()
        return True

    monkeypatch.setattr(StreamingQuery, "awaitTermination", await_termination)


def _with_words(code: str, instead: Mapping[str, str]) -> str:
    for words, others in instead.items():
        assert words in code, words
        code = code.replace(words, others)
    return code
