"""Runs programs to their end, and modules like ``python -P -m``, which needs Python 3.11."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

# -m looks for modules in the working directory first. So does -c, until this code removes that
# directory from the path.
_RUN: Final = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def python_module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module, regardless of files in the working directory."""
    return [sys.executable, "-c", _RUN, name, *arguments]


def finished(
    command: Sequence[str], seconds: float, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end without input; raise TimeoutExpired after ``seconds``."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        **more,
    ) as program:
        try:
            stdout, stderr = program.communicate(timeout=seconds)
        except BaseException:
            # Also kill the programs that this one has started: they would outlive it.
            os.killpg(program.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, program.returncode, stdout, stderr)
