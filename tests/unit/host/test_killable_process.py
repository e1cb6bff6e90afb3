"""Processes started by tests end with the test run, however it ends."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from support.connect_server import lives
from support.jobs import ROOT
from support.queries import until

_CHILD = "import subprocess; subprocess.run(['sleep', '600'])"
_OWNER = f"""
import sys, time
from pathlib import Path
from support.killable_process import KillableProcess, session_members

command, here = [sys.executable, "-c", {_CHILD!r}], Path(sys.argv[1])
with KillableProcess(command, log=here / "log", directory=here, environment={{}}) as process:
    while len(found := sorted(session_members(process.pid))) < 2:
        time.sleep(0.01)
    print(*found, flush=True)
    time.sleep(600)
"""


def test_they_end_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-c", _OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as owner:
        assert owner.stdout is not None
        members = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        assert len(members) == 2
        assert all(map(lives, members))
        owner.kill()
    until(lambda: not any(map(lives, members)), lambda: "their end", 30)
