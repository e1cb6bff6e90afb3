"""README, CHANGELOG, CONTRIBUTING, SECURITY: their links work, and the names in them exist."""

import inspect
import re
from importlib.util import find_spec

import pytest

from spark_eos import ExactlyOnceSink
from support.jobs import ROOT

_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
_ROW = re.compile(r"^\| (`.*`) \| (`[^|]*`) \|", re.MULTILINE)


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize(
    "page", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "MAINTAINING.md", "SECURITY.md"]
)
def test_links_lead_somewhere(page: str) -> None:
    # `make check` sees to those of docs/.
    links = _LINK.findall(_text(page))
    assert links
    for name, anchor in ((name or page, anchor) for name, anchor in links):
        assert (ROOT / name).is_file(), name
        assert not anchor or anchor in _anchors(_text(name)), (name, anchor)


def test_readme_names_every_page() -> None:
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    named = {name for name, _anchor in _LINK.findall(_text("README.md"))}
    assert pages <= named


def test_the_names_of_the_changelog() -> None:
    """The new names exist, and the old ones are gone."""
    tables = _text("CHANGELOG.md").split("\n### Changed\n")[1].split("\n\n")
    kinds = {
        "| `ExactlyOnceSink`": set(inspect.signature(ExactlyOnceSink).parameters),
    }
    for head, there in kinds.items():
        (table,) = (table for table in tables if table.strip().startswith(head))
        for before, now in _names(table):
            assert now in there
            assert before not in there
    (table,) = (table for table in tables if table.strip().startswith("| module"))
    for before, now in _names(table):
        assert find_spec(now), now
        assert find_spec(before) is None, before


def _names(table: str) -> list[tuple[str, str]]:
    pairs = [
        pair
        for row in _ROW.findall(table)
        for pair in zip(*(re.findall(r"`([^`]+)`", cell) for cell in row), strict=True)
        if row[0].count("`") == row[1].count("`")
    ]
    assert pairs
    return [(before, now) for before, now in pairs if now != before]
