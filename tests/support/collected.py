"""What tests there are, for tests of documents that name them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.jobs import ROOT

COLLECTED = pytest.StashKey[dict[str, bool] | None]()
"""Ids of all tests, and whether each is slow; None in a run of chosen files."""


def all_tests(config: pytest.Config) -> dict[str, bool]:
    """Ids of all tests, and whether each is slow: files' names for paths, and parameters.

    A file's name is enough for a page to name it: no two files may have the same.
    """
    ids = config.stash[COLLECTED] or _collect()
    paths = {one.partition("::")[0] for one in ids}
    assert len({Path(path).name for path in paths}) == len(paths), "two files of one name"
    return {re.sub(r"^[^:\[]*/", "", one): slow for one, slow in ids.items()}


def _collect() -> dict[str, bool]:
    slow = _collected("slow")
    return {one: one in slow for one in slow | _collected("not slow")}


def _collected(marks: str) -> set[str]:
    options = ("--collect-only", "-p", "no:cacheprovider", "-m", marks)
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line for line in found.stdout.splitlines() if "::" in line}
