"""A comparison as tables for a terminal of 100 columns or more."""

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spark_eos.cli.verify_tables import verdict_text
from spark_eos.verify import Comparison, Difference, Differences, RowExample

_NAMES = {
    Difference.MISSING: "missing",
    Difference.DUPLICATE: "duplicates",
    Difference.UNEXPECTED: "unexpected",
    Difference.VALUE: "different values",
    Difference.OPEN: "open transactions",
}
_MEANINGS = {
    Difference.MISSING: "expected rows that are not there",
    Difference.DUPLICATE: "rows that are there more often than expected",
    Difference.UNEXPECTED: "rows that are there, but were never expected",
    Difference.OPEN: "not ended within the timeout",
}
_OF_KEYS = {
    Difference.MISSING: "expected keys that are not there, or deleted",
    Difference.UNEXPECTED: "keys that are there, but were never expected",
    Difference.VALUE: "keys whose last value is not the expected one",
    Difference.OPEN: _MEANINGS[Difference.OPEN],
}
_WHY_NOT = {
    Difference.DUPLICATE: "does not apply to --key",
    Difference.VALUE: "needs --key",
}


def comparison_tables(comparison: Comparison) -> RenderableType:
    """Returns the verdict, the checks, and examples of differences."""
    parts: list[RenderableType] = [_headline(comparison)]
    if comparison.by_key:
        parts.append(Text("Compared by the last value of each key."))
    parts += [Text(), _checks(comparison)]
    for reason, count in comparison.unjudged.items():
        parts += [Text(), Text(f"Can't be judged: {count:,} {reason}.")]
    for note in comparison.notes:
        parts += [Text(), Text(f"Note: {note}.")]
    for kind, found in comparison.found.items():
        if found.examples:
            parts += [Text(), _examples(kind, found)]
    return Group(*parts)


def _headline(comparison: Comparison) -> Text:
    return Text.assemble(
        verdict_text(comparison.verdict),
        f": {comparison.rows_expected:,} rows expected, {comparison.records_out:,} out as a "
        "read_committed consumer sees them",
    )


def _checks(comparison: Comparison) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    table.add_column("check")
    table.add_column("found", justify="right", no_wrap=True)
    table.add_column("meaning")
    meanings = _OF_KEYS if comparison.by_key else _MEANINGS
    for kind in Difference:
        found = comparison.found.get(kind)
        if found is None:
            table.add_row(_NAMES[kind], "-", Text(f"not checked: {_WHY_NOT[kind]}", style="dim"))
            continue
        style = "bold red" if found.count else ""
        table.add_row(Text(_NAMES[kind], style), Text(f"{found.count:,}", style), meanings[kind])
    return table


def _examples(kind: Difference, found: Differences) -> Text:
    shown = len(found.examples)
    more = f", {shown} of {found.count:,}" if shown < found.count else ""
    text = Text.assemble((f"{_NAMES[kind]}{more}:", "bold"))
    for example in found.examples:
        text.append(f"\n  {', '.join(_pieces(kind, example))}")
    return text


def _pieces(kind: Difference, example: RowExample) -> Iterator[str]:
    if kind is not Difference.OPEN:
        if example.key is not None:  # null, or not compared
            yield f"key '{example.key}'"
        yield f"value {_quoted(example.value)}"
    if kind is Difference.VALUE:
        yield f"expected {_quoted(example.expected)}"
    if example.source is not None:
        yield f"row {example.source}"
    if example.outputs:
        yield "at " + " and ".join(map(str, example.outputs))
    if example.detail:
        yield example.detail


def _quoted(text: str | None) -> str:
    return "null" if text is None else f"'{text}'"
