"""Which process is the driver, and where a keeper's socket lies."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from spark_eos.datasource import keeper_client
from spark_eos.host import driver_process


def test_a_long_temporary_directory_is_not_used_for_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / ("x" * 90)))
    assert len(str(keeper_client._directory())) < 90


def test_the_driver_is_the_nearest_ancestor_that_is_not_python() -> None:
    asking = "from spark_eos.host.driver_process import spark_driver; print(spark_driver().pid)"
    daemon = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {asking!r}])"
    # Two commands, so that the shell does not become the first of them.
    line = [shutil.which("sh") or "", "-c", 'echo $$; "$0" -c "$1"; true', sys.executable, daemon]
    shell, driver = subprocess.check_output(line, text=True, timeout=60).split()
    assert driver == shell


def test_a_driver_lives_as_long_as_it_is_the_same_process() -> None:
    found = driver_process.spark_driver()
    assert found.alive
    assert not driver_process.HostProcess(found.pid, "another time").alive


def test_processes_are_found_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_process, "_PROC", Path("/nowhere"))
    found = driver_process._look_up(os.getpid())
    assert found is not None
    assert found.parent == os.getppid()
    assert "python" in found.command or "pytest" in found.command
    assert driver_process._look_up(2**22 - 1) is None
