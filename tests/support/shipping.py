"""The packages that docs/deploying.md ships to executors with nothing installed."""

import re
import subprocess
import sys
import venv
from pathlib import Path

from support.jobs import ROOT
from support.pages import code_blocks, page, with_words
from support.pins import write_pins

_PACK, _SUBMIT = code_blocks("deploying", "sh")
SHIPPED = [word for pair in re.findall(r"(--archives|--conf) (\S+)", _SUBMIT) for word in pair]
"""Options of spark-submit that ship the packages."""
assert len(SHIPPED) == 4, SHIPPED
CLUSTER_MODE = re.findall(
    r"`--deploy-mode cluster`, add `(--conf)\s+(\S+)`", page("docs/deploying.md").text
)[0]
"""Further options of spark-submit if YARN runs the driver."""


def pack(directory: Path) -> None:
    """Creates the archive of packages in a directory, as the page describes."""
    # Use the tested versions, not today's newest.
    pins = write_pins(directory / "pins.txt")
    instead = {
        "python3": sys.executable,
        " . ": f" {ROOT} --no-build-isolation --constraint {pins} ",
    }
    pack = with_words(_PACK, instead)
    subprocess.run(["/bin/bash", "-e", "-c", pack], cwd=directory, check=True, timeout=300)


def make_bare_python(place: Path) -> str:
    """A Python of this version without packages."""
    venv.create(place, with_pip=False)
    return str(place / "bin" / "python")
