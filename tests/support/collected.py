"""What tests there are, and what each proves, for tests of documents."""

import json
import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from support.jobs import ROOT

COLLECTED = pytest.StashKey[list[dict[str, Any]] | None]()
"""All tests, as `described` has them; None in a run of chosen files."""


def described(items: Iterable[pytest.Item]) -> list[dict[str, Any]]:
    """Of each test its id, whether it is slow, and promises with the cases that prove them."""
    return [
        {
            "id": item.nodeid,
            "slow": item.get_closest_marker("slow") is not None,
            "proves": [
                [promise, mark.kwargs.get("case")]
                for mark in item.iter_markers("proves")
                for promise in mark.args
            ],
        }
        for item in items
    ]


def keep(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps what there is, for tests, and for tools/evidence.py in the file that it wants."""
    found = described(items)
    whole = [str(Path(__file__).parents[1].relative_to(config.rootpath))]
    config.stash[COLLECTED] = found if config.args == whole else None
    if config.option.collected is not None:
        config.option.collected.write_text(json.dumps(found), encoding="utf-8")


def all_tests(config: pytest.Config) -> list[Any]:
    """All tests, as tools/evidence.py has them."""
    evidence = runpy.run_path(str(ROOT / "tools" / "evidence.py"))
    found: list[Any] = evidence["as_tests"](config.stash[COLLECTED] or evidence["collect"]())
    return found
