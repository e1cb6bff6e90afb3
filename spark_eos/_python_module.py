"""Other programs: run to their end, or a module as ``python -P -m`` does from Python 3.11 on."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

# -m, and -c until it has removed it, look for modules in the working directory first.
_RUN: Final = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def python_module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module, whatever files the working directory has."""
    return [sys.executable, "-c", _RUN, name, *arguments]


def finished(
    command: Sequence[str], seconds: float, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without input; raise TimeoutExpired after some seconds."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **more,
    ) as program:
        try:
            stdout, stderr = program.communicate(timeout=seconds)
        except BaseException:
            # With the programs that this one has started, which would outlive it.
            os.killpg(program.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, program.returncode, stdout, stderr)
