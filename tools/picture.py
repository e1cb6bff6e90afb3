"""Draws docs/assets/demo.svg, the output of one run of ``make demo``, from tools/demo.json."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.terminal_theme import MONOKAI

from demo.report import add_numbers, side_by_side
from demo.scenario import COPIES, COUNTS

_ROOT: Final = Path(__file__).parent.parent
PICTURE: Final = _ROOT / "docs" / "assets" / "demo.svg"

_RUN: Final = Path(__file__).with_name("demo.json")
# Characters; narrow enough to read on a phone.
_WIDTH: Final = 58
# Rich's own format, without the fonts that it loads from another host.
_FORMAT: Final = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def _recorded() -> Iterator[Table]:
    """Yield the tables of both scenarios, with the numbers of one run."""
    run = json.loads(_RUN.read_text(encoding="utf-8"))
    for title, name in ((COPIES.title, "relay"), (COUNTS.title, "counted")):
        table = side_by_side(title)
        for row, numbers in run[name].items():
            add_numbers(table, row, *numbers)
        yield table


def page() -> str:
    """Return the picture."""
    console = Console(
        record=True,
        file=io.StringIO(),
        width=_WIDTH,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
        no_color=False,
    )
    for number, table in enumerate(_recorded()):
        if number:
            console.print()
        console.print(table)
    svg = console.export_svg(
        title="make demo", theme=MONOKAI, code_format=_FORMAT, unique_id="demo"
    )
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def write() -> None:
    """Write docs/assets/demo.svg."""
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write()
