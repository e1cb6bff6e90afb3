"""README, CHANGELOG, CONTRIBUTING, SECURITY: their links work, and the names in them exist."""

import inspect
import re
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from spark_eos import ExactlyOnceSink
from support.jobs import ROOT
from support.pages import page


def _anchors(path: str) -> set[str]:
    heads = page(path).headings
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize(
    "path", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "MAINTAINING.md", "SECURITY.md"]
)
def test_links_lead_somewhere(path: str) -> None:
    # `make check` sees to those of docs/.
    links = [link for link in page(path).links if not link.startswith("http")]
    assert links
    for link in links:
        name, _, anchor = link.partition("#")
        assert not name or (ROOT / name).is_file(), link
        assert not anchor or anchor in _anchors(name or path), link


def test_readme_names_every_page() -> None:
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {link.partition("#")[0] for link in page("README.md").links}


def test_the_names_of_the_changelog() -> None:
    """The new names exist, and the old ones are gone."""
    tables = {table.columns[0]: table.rows for table in page("CHANGELOG.md").tables}
    options = inspect.signature(ExactlyOnceSink).parameters
    for before, now in _names(tables["`ExactlyOnceSink`"]):
        assert now in options
        assert before not in options
    for before, now in _names(tables["module"]):
        assert find_spec(now), now
        assert find_spec(before) is None, before


def _names(rows: list[dict[str, str]]) -> Iterator[tuple[str, str]]:
    """Each old name and its new one."""
    for row in rows:
        before, now, *_ = (re.findall(r"`([^`]+)`", cell) for cell in row.values())
        yield from zip(before, now, strict=True)
