"""The origin of a figure: the code, the date and the machine."""

import datetime
import os
import platform
import shutil
import subprocess
from pathlib import Path

_ROOT = Path(__file__).parent.parent.parent


def origin() -> dict[str, str]:
    """The commit, the tree of the package in it, today's date in UTC, and the machine.

    The commit and the tree end with a plus if their files have changed since. Evidence with the
    same tree is of the same code, even if commits changed pages and tests.
    """
    gibibytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "commit": _known("HEAD", "spark_eos", "tests", "pyproject.toml", "constraints.txt"),
        "code": _known("HEAD:spark_eos", "spark_eos"),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": f"{os.cpu_count()} processors, {gibibytes:.0f} GiB, {platform.system()}, "
        f"Python {platform.python_version()}",
    }


def _known(what: str, *paths: str) -> str:
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *paths)
    return _git("rev-parse", "--short=12", what) + ("+" if changed else "")


def _git(*arguments: str) -> str:
    git = shutil.which("git") or "git"
    ran = subprocess.run([git, *arguments], cwd=_ROOT, capture_output=True, text=True, check=True)
    return ran.stdout.strip()
