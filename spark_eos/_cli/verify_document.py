"""Findings as one JSON document.

Its keys are a public interface: don't rename any, nor fields of examples and positions.
"""

import json
from dataclasses import asdict
from typing import Any

from spark_eos.verify import Comparison, Example, Finding, Findings, Kind, RowExample


def as_json(result: Findings | Comparison) -> str:
    """Returns the document. Bytes are decoded as UTF-8; invalid bytes are escaped."""
    of_one = _of_findings(result) if isinstance(result, Findings) else _of_comparison(result)
    document = {
        "verdict": result.verdict.name.lower(),
        "records_out": result.records_out,
        "found": {kind.value: _finding(kind, one) for kind, one in result.found.items()},
        "not_checked": [kind.value for kind in result.unchecked],
        "unjudged": dict(result.unjudged),
        "notes": list(result.notes),
    }
    return json.dumps({**document, **of_one}, indent=2)


def _of_findings(findings: Findings) -> dict[str, Any]:
    return {
        "records_in": findings.records_in,
        "isolation_level": findings.isolation_level,
        "complete": findings.complete,
        "input_gone": findings.input_gone,
        "group": [
            {
                "topic": one.topic,
                "partition": one.partition,
                "committed_offset": one.committed,
                "last_stable_offset": one.end,
            }
            for one in findings.group
        ],
    }


def _of_comparison(comparison: Comparison) -> dict[str, Any]:
    return {"rows_expected": comparison.rows_expected, "by_key": comparison.by_key}


def _finding(kind: object, finding: Finding[Example] | Finding[RowExample]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "count": finding.count,
        "examples": [_example(example) for example in finding.examples],
    }
    if kind is Kind.LOST:
        found["attempts"] = dict(finding.parts)
    return found


def _example(example: Example | RowExample) -> dict[str, Any]:
    fields = asdict(example)
    if isinstance(example, Example) and example.name is not None:
        fields["name"] = example.name.decode("utf-8", "backslashreplace")
    return fields
