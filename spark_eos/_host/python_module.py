"""Runs a module in a process of its own, as ``python -P -m`` does from Python 3.11 on."""

import sys
from typing import Final

# -m, and -c until it has removed it, look for modules in the working directory first.
_RUN: Final = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def python_module(name: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module, whatever files the working directory has."""
    return [sys.executable, "-c", _RUN, name, *arguments]
