"""Reads the tables of a page in docs/."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True)
class Table:
    """A table and its heading."""

    section: str
    columns: list[str]
    rows: list[dict[str, str]]


def tables(page: str) -> Iterator[Table]:
    section, lines = "", []
    for line in [*(_DOCS / page).read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip("|").split(" | ")])
            continue
        if lines:
            columns = lines[0]
            yield Table(
                section, columns, [dict(zip(columns, row, strict=True)) for row in lines[2:]]
            )
            lines = []
        if line.startswith("## "):
            section = line.removeprefix("## ")


def table_of(page: str, section: str) -> Table:
    """The first table under a heading."""
    return next(table for table in tables(page) if table.section == section)
