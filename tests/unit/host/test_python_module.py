"""spark-eos' processes run the installed modules, whatever is in the working directory."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from spark_eos._python_module import finished, python_module


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files that shadow modules; each leaves a trace."""
    marker = tmp_path / "ran"
    for name in ("runpy", "contextlib", "shutil", "spark_eos"):
        (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    return marker


def _run(command: list[str], **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
    )


def test_files_in_the_working_directory_shadow_no_module(planted: Path) -> None:
    _run([sys.executable, "-m", "spark_eos.testing.guard"])
    assert planted.exists(), "nothing would be seen if one did"
    planted.unlink()
    ended = _run(python_module("spark_eos.testing.guard"))
    assert not planted.exists()
    # Without arguments the module itself fails.
    assert "guard.py" in ended.stderr
    assert "IndexError" in ended.stderr


@pytest.mark.parametrize("safe", ["", "1"])
def test_a_module_gets_its_arguments_and_the_path(safe: str, tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text("import sys; print(__name__, sys.argv[1:])\n")
    command = python_module("shown", "a", "b c")
    ended = _run(command, PYTHONPATH=str(tmp_path), PYTHONSAFEPATH=safe)
    assert ended.stdout == "__main__ ['a', 'b c']\n", ended.stderr


def test_a_program_that_is_too_slow_ends_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    started = f"import subprocess; p = subprocess.Popen(['sleep', '60']); open({str(child)!r}, 'w')"
    program = f"{started}.write(str(p.pid)); p.wait()"
    with pytest.raises(subprocess.TimeoutExpired):
        finished([sys.executable, "-c", program], 3)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(child.read_text())).wait(10)


def test_output_in_another_encoding_is_no_fault() -> None:
    program = r"import os; os.write(1, b'a\xffb'); os.write(2, b'\xfc')"
    ended = finished([sys.executable, "-c", program], 60)
    assert (ended.returncode, ended.stdout[0], ended.stdout[-1]) == (0, "a", "b")
