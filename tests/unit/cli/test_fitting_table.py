"""Tables that fit the terminal without truncating their contents."""

import io
import re

from rich.console import Console

from spark_eos._client.tables import FittingTable

_ROWS = [
    ("orders-of-customers-by-region-and-year", "7", "123,456,789,012", "1,234", "spark-eos-0"),
    ("orders", "12", "-", "0", "-"),
]


def _shown(width: int) -> str:
    table = FittingTable("topic", "partition>", "committed>", "lag of it all>", "member")
    for row in _ROWS:
        table.add(*row)
    text = io.StringIO()
    Console(file=text, width=width, highlight=False).print(table)
    return text.getvalue()


def test_numbers_are_never_cut() -> None:
    for width in range(30, 170):
        shown = _shown(width)
        assert max(map(len, shown.splitlines())) <= width
        for number in ("123,456,789,012", "1,234", "12"):
            assert re.search(rf"(?<![\d,]){number}(?![\d,])", shown), shown


def test_names_are_never_cut_to_single_letters() -> None:
    name = _ROWS[0][0]
    for width in range(60, 170):
        shown = _shown(width)
        first = next(line for line in shown.splitlines() if "orders-of" in line)
        assert name[:24] in first, shown
        # Folded, not cut: it can still be copied out.
        assert "…" not in shown


def test_a_table_where_there_is_room() -> None:
    assert _shown(160).splitlines()[2].split() == [*_ROWS[0]]


def test_a_list_where_there_is_none() -> None:
    lines = [re.split(r"  +", line.strip()) for line in _shown(50).splitlines()]
    assert ["committed", "123,456,789,012"] in lines
    assert ["topic", "orders"] in lines


def test_no_rows() -> None:
    text = io.StringIO()
    Console(file=text, width=30).print(FittingTable("topic", "a long number>"))
    assert text.getvalue().split() == ["topic", "a", "long", "number", "─" * 21]
