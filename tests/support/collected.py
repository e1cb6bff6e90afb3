"""What tests there are, for tests of documents that name them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.jobs import ROOT

COLLECTED = pytest.StashKey[set[str] | None]()
"""Ids of all tests, those that marks leave out among them; None in a run of chosen files."""


def all_tests(config: pytest.Config) -> set[str]:
    """Ids of all tests, with their files' names for paths, and with their parameters.

    A file's name is enough for a page to name it: no two files may have the same.
    """
    ids = config.stash[COLLECTED] or _collect()
    paths = {one.partition("::")[0] for one in ids}
    assert len({Path(path).name for path in paths}) == len(paths), "two files of one name"
    return {re.sub(r"^[^:\[]*/", "", one) for one in ids}


def _collect() -> set[str]:
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", "tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line for line in found.stdout.splitlines() if "::" in line}
