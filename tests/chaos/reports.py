"""Reports of batches, in a file beside the query's log: they may come from another process."""

import json
from pathlib import Path
from typing import Any


def add_report(file: Path, report: dict[str, Any]) -> None:
    with file.open("a") as opened:
        opened.write(json.dumps(report) + "\n")


def reports_of(file: Path) -> list[dict[str, Any]]:
    """All so far, without one that is being written."""
    text = file.read_text() if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines()]
