"""Findings as one JSON document.

Its keys are a public interface: don't rename any, nor fields of examples and positions.
"""

import json
from dataclasses import asdict
from typing import Any

from spark_eos.verify import Comparison, Example, Finding, Findings, Kind


def as_json(found: Findings | Comparison) -> str:
    """Returns the document. Bytes are decoded as UTF-8; invalid bytes are escaped."""
    document = _comparison(found) if isinstance(found, Comparison) else _findings(found)
    return json.dumps(document, indent=2)


def _findings(findings: Findings) -> dict[str, Any]:
    return {
        "verdict": findings.verdict.name.lower(),
        "records_in": findings.records_in,
        "records_out": findings.records_out,
        "isolation_level": findings.isolation_level,
        "complete": findings.complete,
        "found": {kind.value: _finding(kind, finding) for kind, finding in findings.found.items()},
        "not_checked": [kind.value for kind in findings.unchecked],
        "input_gone": findings.input_gone,
        "unjudged": dict(findings.unjudged),
        "notes": list(findings.notes),
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


def _finding(kind: Kind, finding: Finding) -> dict[str, Any]:
    found: dict[str, Any] = {
        "count": finding.count,
        "examples": [_example(example) for example in finding.examples],
    }
    if kind is Kind.LOST:
        found["attempts"] = dict(finding.parts)
    return found


def _example(example: Example) -> dict[str, Any]:
    name = example.name
    text = None if name is None else name.decode("utf-8", "backslashreplace")
    return {**asdict(example), "name": text}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "verdict": comparison.verdict.name.lower(),
        "rows_expected": comparison.rows_expected,
        "records_out": comparison.records_out,
        "by_key": comparison.by_key,
        "found": {
            kind.value: {
                "count": found.count,
                "examples": [asdict(example) for example in found.examples],
            }
            for kind, found in comparison.found.items()
        },
        "not_checked": [kind.value for kind in comparison.unchecked],
        "unjudged": dict(comparison.unjudged),
        "notes": list(comparison.notes),
    }
