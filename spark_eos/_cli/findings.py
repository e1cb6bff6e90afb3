"""Findings and comparisons, as a JSON document or as tables for at least 100 columns."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spark_eos._client.printable import printable
from spark_eos.verify import (
    Comparison,
    Difference,
    Example,
    Finding,
    Findings,
    Kind,
    RowExample,
    Verdict,
)

_VERDICTS: Final = {
    Verdict.SOUND: ("SOUND", "bold green"),
    Verdict.ANOMALIES: ("ANOMALIES", "bold red"),
    Verdict.UNJUDGED: ("CAN'T BE JUDGED", "bold yellow"),
}
# The name and meaning of each kind.
_Checks = Mapping[Any, tuple[str, str]]
_FINDINGS: Final[_Checks] = {
    Kind.LOST: ("lost writes", "processed input without visible output"),
    Kind.DUPLICATE: ("duplicates", "more visible outputs of an input than expected"),
    Kind.PHANTOM: ("outputs without an input", "visible outputs that no input explains"),
    Kind.ABORTED_READ: ("aborted reads (G1a)", "visible, but their transaction was aborted"),
    Kind.DIRTY_READ: ("dirty reads", "visible, but their transaction has not ended"),
    Kind.REORDERED: ("reordered", "visible after the output of a later input"),
    Kind.WITHOUT_OFFSET: (
        "outputs without their offset",
        "visible, but the group has not committed their input",
    ),
    Kind.BEYOND_END: (
        "group offsets beyond the input's end",
        "the group has committed offsets that do not exist",
    ),
    Kind.OPEN: ("open transactions", "not ended within the timeout"),
    Kind.UNPROCESSED: ("not yet processed", "input at or above the group's offsets"),
}
_OF_ROWS: Final[_Checks] = {
    Difference.MISSING: ("missing", "expected rows that do not occur"),
    Difference.DUPLICATE: ("duplicates", "rows that occur more often than expected"),
    Difference.UNEXPECTED: ("unexpected", "rows that occur but were never expected"),
    Difference.VALUE: ("different values", ""),
    Difference.OPEN: ("open transactions", "not ended within the timeout"),
}
_OF_KEYS: Final[_Checks] = {
    **_OF_ROWS,
    Difference.MISSING: ("missing", "expected keys that do not occur or are deleted"),
    Difference.UNEXPECTED: ("unexpected", "keys that occur but were never expected"),
    Difference.VALUE: ("different values", "keys whose last value is not the expected one"),
}
_WHY_NOT: Final[Mapping[Any, str]] = {
    Kind.REORDERED: "needs --position-header",
    Kind.WITHOUT_OFFSET: "needs --group-id",
    Kind.BEYOND_END: "needs --group-id",
    Kind.UNPROCESSED: "needs --group-id",
    Difference.DUPLICATE: "does not apply to --key",
    Difference.VALUE: "needs --key",
}
_FATES: Final = {
    "none": "never written",
    "aborted": "aborted",
    "open": "in an open transaction",
}


def as_json(result: Findings | Comparison) -> str:
    """Return the JSON document. All of its keys are public, even those that are field names."""
    document = {
        "verdict": result.verdict.name.lower(),
        **{field.name: getattr(result, field.name) for field in fields(result)},
        "found": {kind.value: _finding(kind, finding) for kind, finding in result.found.items()},
        "not_checked": [kind.value for kind in result.unchecked],
        "unjudged": dict(result.unjudged),
    }
    if isinstance(result, Findings):
        document["group"] = [
            {
                "topic": member.topic,
                "partition": member.partition,
                "committed_offset": member.committed,
                "last_stable_offset": member.end,
            }
            for member in result.group
        ]
    return json.dumps(document, indent=2)


def _finding(kind: object, finding: Finding[Any]) -> dict[str, Any]:
    examples = [asdict(example) for example in finding.examples]
    for example in examples:
        if isinstance(example.get("name"), bytes):
            example["name"] = example["name"].decode("utf-8", "backslashreplace")
    document: dict[str, Any] = {"count": finding.count, "examples": examples}
    if kind is Kind.LOST:
        document["attempts"] = dict(finding.parts)
    return document


def verify_tables(result: Findings | Comparison) -> RenderableType:
    """Return the verdict, the checks, and examples of the findings."""
    if isinstance(result, Findings):
        checks, comparing = _FINDINGS, ""
        read, level = f"{result.records_in:,} records in", result.isolation_level
    else:
        checks, comparing = _OF_ROWS, ""
        read, level = f"{result.rows_expected:,} rows expected", "read_committed"
        if result.by_key:
            checks, comparing = _OF_KEYS, "\nCompared by the last value of each key."
    written = f"{result.records_out:,} out as a {level} consumer sees them"
    verdict = Text.assemble(_VERDICTS[result.verdict], f": {read}, {written}{comparing}")
    parts: list[RenderableType] = [verdict, Text(), _table(result, checks)]
    for line in _remarks(result):
        parts += [Text(), Text(line)]
    for kind, finding in result.found.items():
        if finding.examples:
            parts += [Text(), _examples(kind, checks[kind][0], finding)]
    return Group(*parts)


def _table(result: Findings | Comparison, checks: _Checks) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    table.add_column("check")
    table.add_column("found", justify="right", no_wrap=True)
    table.add_column("meaning")
    counts = {kind: finding.count for kind, finding in result.found.items()}
    for kind, (name, meaning) in checks.items():
        if kind not in counts:
            table.add_row(name, "-", Text(f"not checked: {_WHY_NOT[kind]}", style="dim"))
            continue
        style = "bold red" if kind in result.anomalies else ""
        table.add_row(Text(name, style), Text(f"{counts[kind]:,}", style), meaning)
    return table


def _remarks(result: Findings | Comparison) -> Iterator[str]:
    if isinstance(result, Findings) and result.input_gone:
        yield f"The input of {result.input_gone:,} outputs has been removed by retention."
    for reason, count in result.unjudged.items():
        yield f"Can't be judged: {count:,} {reason}."
    for note in result.notes:
        yield f"Note: {note}."


def _examples(kind: Kind | Difference, name: str, finding: Finding[Any]) -> Text:
    shown = len(finding.examples)
    more = f", {shown} of {finding.count:,}" if shown < finding.count else ""
    if finding.parts:
        fates = (f"{_FATES[fate]} {count:,}" for fate, count in finding.parts.items())
        more += f" ({', '.join(fates)})"
    text = Text.assemble((f"{name}{more}:", "bold"))
    for example in finding.examples:
        pieces = _of_record(example) if isinstance(example, Example) else _of_row(kind, example)
        text.append(f"\n  {', '.join(printable(piece) for piece in pieces if piece)}")
    return text


def _of_record(example: Example) -> Iterator[str]:
    source = "" if example.source is None else str(example.source)
    name = "" if example.name is None else repr(example.name)[1:]
    yield " ".join(piece for piece in (source, name, _at(example)) if piece)
    yield example.detail


def _of_row(kind: Kind | Difference, example: RowExample) -> Iterator[str]:
    if kind is not Difference.OPEN:
        yield "" if example.key is None else f"key '{example.key}'"  # None: null, or not compared
        yield f"value {_quoted(example.value)}"
    if kind is Difference.VALUE:
        yield f"expected {_quoted(example.expected)}"
    yield "" if example.source is None else f"row {example.source}"
    yield _at(example)
    yield example.detail


def _at(example: Example | RowExample) -> str:
    return "at " + " and ".join(map(str, example.outputs)) if example.outputs else ""


def _quoted(text: str | None) -> str:
    return "null" if text is None else f"'{text}'"
