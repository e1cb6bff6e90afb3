"""Tables as HTML for notebooks: plain, so that a notebook's own theme, light or dark, shows them.

The standard library's ElementTree writes the markup and escapes what it holds.
"""

from collections.abc import Iterable, Sequence
from typing import Final
from xml.etree import ElementTree

from spark_eos._client.printable import printable

_RIGHT: Final = {"style": "text-align: right"}
_LEFT: Final = {"style": "text-align: left"}


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table; names from elsewhere can't become markup or control characters.

    Example:
        >>> html_table(["topic", "lag>"], [["<b>", 1_200]])  # doctest: +NORMALIZE_WHITESPACE
        '<table><thead><tr><th style="text-align: left">topic</th><th style="text-align:
        right">lag</th></tr></thead><tbody><tr><td style="text-align: left">&lt;b&gt;</td><td
        style="text-align: right">1,200</td></tr></tbody></table>'
    """
    styles = [_RIGHT if name.endswith(">") else _LEFT for name in columns]
    table = ElementTree.Element("table")
    head = ElementTree.SubElement(ElementTree.SubElement(table, "thead"), "tr")
    for name, style in zip(columns, styles, strict=True):
        ElementTree.SubElement(head, "th", style).text = name.removesuffix(">")
    body = ElementTree.SubElement(table, "tbody")
    for row in rows:
        line = ElementTree.SubElement(body, "tr")
        for value, style in zip(row, styles, strict=True):
            ElementTree.SubElement(line, "td", style).text = _text(value)
    return ElementTree.tostring(table, encoding="unicode", method="html")


def html_line(text: str, *, bold: bool = False) -> str:
    """Returns a line of text.

    Example:
        >>> html_line("a < b")
        '<div>a &lt; b</div>'
    """
    line = ElementTree.Element("div")
    holder = ElementTree.SubElement(line, "b") if bold else line
    holder.text = printable(text)
    return ElementTree.tostring(line, encoding="unicode", method="html")


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))
