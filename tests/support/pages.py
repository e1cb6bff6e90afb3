"""Reads the project's documentation for tests."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos import ExactlyOnceSink
from support.apis import patiently
from support.flow import Flow
from support.jobs import ROOT

_MARKDOWN: Final = MarkdownIt().enable("table")
_PIPE: Final = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Table:
    """A table, with the second-level heading above it."""

    section: str
    columns: list[str]
    rows: list[dict[str, str]]


class Page:
    """A Markdown file's contents, each kind in reading order.

    Attributes:
        text: The whole text.
        fences: Language and code of each fenced block.
        inline_code: Second-level heading, and code, of each inline code span.
        tables: The tables.
        links: The targets of the links.
        headings: The texts of the headings.
    """

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        self.fences: list[tuple[str, str]] = []
        self.inline_code: list[tuple[str, str]] = []
        self.tables: list[Table] = []
        self.links: list[str] = []
        self.headings: list[str] = []
        section = ""
        for node in SyntaxTreeNode(_MARKDOWN.parse(self.text)).walk():
            if node.type == "fence":
                self.fences.append((node.info, node.content))
            elif node.type == "code_inline":
                self.inline_code.append((section, node.content))
            elif node.type == "table":
                self.tables.append(self._table(section, node))
            elif node.type == "link":
                self.links.append(str(node.attrs["href"]))
            elif node.type == "heading":
                self.headings.append(node.children[0].content)
                section = self.headings[-1] if node.tag == "h2" else section

    def table(self, section: str) -> Table:
        """The first table under a second-level heading."""
        return next(table for table in self.tables if table.section == section)

    def _table(self, section: str, node: SyntaxTreeNode) -> Table:
        columns, *rows = (
            [cell.children[0].content for cell in row.children]
            for part in node.children
            for row in part.children
        )
        # Like browsers, the parser drops surplus cells.
        first, end = node.map or (0, 0)
        for line in self.text.splitlines()[first:end]:
            assert len(_PIPE.findall(line)) == len(columns) + 1, line
        return Table(section, columns, [dict(zip(columns, row, strict=True)) for row in rows])


@cache
def page(path: str) -> Page:
    """A page by its path in the repository."""
    return Page(ROOT / path)


def code_blocks(name: str, language: str) -> list[str]:
    """The blocks of a page in docs/ in one language.

    `test_docs_pages.py` omits blocks that another test runs as a whole.
    """
    return [code for found, code in page(f"docs/{name}.md").fences if found == language]


def readmes_query(flow: Flow) -> str:
    """Runs README's query with a flow's topics until everything available is read."""
    (code,) = (code for _, code in page("README.md").fences if "ExactlyOnceSink" in code)
    instead = {
        '"localhost:9092"': repr(flow.bootstrap_servers),
        '"order-processors"': repr(flow.group_id),
        '"orders"': repr(flow.source),
        '"orders-enriched"': repr(flow.target),
        '"checkpoints/orders"': repr(flow.checkpoint),
        'processingTime="1 second"': "availableNow=True",
    }
    return with_words(code, instead)


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
    exec(compile(with_words(code, instead), "a code block", "exec"), names)  # noqa: S102 - that is what it is for
    return names


def end_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries on pages run forever; here, they end when they have read everything available."""

    def await_termination(query: StreamingQuery, _timeout: float | None = None) -> bool:
        try:
            # This raises the error of a failed query, and does nothing for a finished one.
            query.processAllAvailable()
        finally:
            query.stop()
        return True

    monkeypatch.setattr(StreamingQuery, "awaitTermination", await_termination)


def with_words(code: str, instead: Mapping[str, str]) -> str:
    """A block with parts of its text replaced; the block must contain each part."""
    for words in instead:
        assert words in code, words
    return replaced(code, instead)


def replaced(code: str, instead: Mapping[str, str]) -> str:
    """A block with parts of its text replaced, as far as the block contains them."""
    for words, others in instead.items():
        code = code.replace(words, others)
    return code
