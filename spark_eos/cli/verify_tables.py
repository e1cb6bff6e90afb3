"""Findings as tables for a terminal of 100 columns or more."""

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spark_eos.verify import Example, Finding, Findings, Kind, Verdict

_NAMES = {
    Kind.LOST: "lost writes",
    Kind.DUPLICATE: "duplicates",
    Kind.PHANTOM: "outputs of no input",
    Kind.ABORTED_READ: "aborted reads (G1a)",
    Kind.DIRTY_READ: "dirty reads",
    Kind.REORDERED: "reordered",
    Kind.WITHOUT_OFFSET: "outputs without their offset",
    Kind.BEYOND_END: "group offsets beyond the input's end",
    Kind.OPEN: "open transactions",
    Kind.UNPROCESSED: "not yet processed",
}
_MEANINGS = {
    Kind.LOST: "processed input without visible output",
    Kind.DUPLICATE: "more visible outputs of an input than expected",
    Kind.PHANTOM: "visible outputs without an input",
    Kind.ABORTED_READ: "visible, but their transaction was aborted",
    Kind.DIRTY_READ: "visible, but their transaction has not ended",
    Kind.REORDERED: "visible after the output of a later input",
    Kind.WITHOUT_OFFSET: "visible, but the group has not committed their input",
    Kind.BEYOND_END: "the group has committed offsets that do not exist",
    Kind.OPEN: "not ended within the timeout",
    Kind.UNPROCESSED: "input at or above the group's offsets",
}
_FATES = {"none": "never written", "aborted": "aborted", "open": "in an open transaction"}
_WHY_NOT = {
    Kind.REORDERED: "needs --position-header",
    Kind.WITHOUT_OFFSET: "needs --group-id",
    Kind.BEYOND_END: "needs --group-id",
    Kind.UNPROCESSED: "needs --group-id",
}


def findings_tables(findings: Findings) -> RenderableType:
    """Returns the verdict, the checks, and examples of anomalies."""
    parts: list[RenderableType] = [_headline(findings), Text(), _checks(findings)]
    for line in _remarks(findings):
        parts += [Text(), Text(line)]
    for kind, finding in findings.found.items():
        if finding.examples:
            parts += [Text(), _examples(kind, finding)]
    return Group(*parts)


def verdict_text(verdict: Verdict) -> tuple[str, str]:
    """Returns a verdict's words and their style."""
    return {
        Verdict.SOUND: ("SOUND", "bold green"),
        Verdict.ANOMALIES: ("ANOMALIES", "bold red"),
        Verdict.UNJUDGED: ("CAN'T BE JUDGED", "bold yellow"),
    }[verdict]


def _headline(findings: Findings) -> Text:
    return Text.assemble(
        verdict_text(findings.verdict),
        f": {findings.records_in:,} records in, {findings.records_out:,} out as a "
        f"{findings.isolation_level} consumer sees them",
    )


def _checks(findings: Findings) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    table.add_column("check")
    table.add_column("found", justify="right", no_wrap=True)
    table.add_column("meaning")
    for kind in Kind:
        finding = findings.found.get(kind)
        if finding is None:
            table.add_row(_NAMES[kind], "-", Text(f"not checked: {_WHY_NOT[kind]}", style="dim"))
            continue
        style = "bold red" if kind in findings.anomalies else ""
        table.add_row(Text(_NAMES[kind], style), Text(f"{finding.count:,}", style), _MEANINGS[kind])
    return table


def _parts(finding: Finding) -> str:
    return ", ".join(f"{_FATES[name]} {count:,}" for name, count in finding.parts.items())


def _remarks(findings: Findings) -> Iterator[str]:
    if findings.input_gone:
        yield f"The input of {findings.input_gone:,} outputs has been removed by retention."
    for reason, count in findings.unjudged.items():
        yield f"Can't be judged: {count:,} {reason}."
    for note in findings.notes:
        yield f"Note: {note}."


def _examples(kind: Kind, finding: Finding) -> Text:
    shown = len(finding.examples)
    more = f", {shown} of {finding.count:,}" if shown < finding.count else ""
    if finding.parts:
        more += f" ({_parts(finding)})"
    text = Text.assemble((f"{_NAMES[kind]}{more}:", "bold"))
    for example in finding.examples:
        text.append(f"\n  {_example(example)}")
    return text


def _example(example: Example) -> str:
    pieces = []
    if example.source is not None:
        pieces.append(str(example.source))
    if example.name is not None:
        pieces.append(repr(example.name)[1:])
    if example.outputs:
        pieces.append("at " + " and ".join(map(str, example.outputs)))
    described = " ".join(pieces)
    return ", ".join(piece for piece in (described, example.detail) if piece)
