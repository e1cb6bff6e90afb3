"""Code that needs Linux has an alternative for macOS, which these tests force on Linux."""

import errno
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import spark_eos
from spark_eos._client.kafka_python import closed_by_peer
from spark_eos._jars.java import JavaError, find_java
from spark_eos._private_paths import private_directory
from spark_eos._worker import spark_connection
from spark_eos._worker.spark_connection import SparkConnection
from support import killable_process as process
from support.jobs import ROOT

# What Linux alone has, and Python's names of it.
_LINUX = re.compile(
    r"/proc\b|/sys/|/dev/shm|TCP_QUICKACK|SO_PEERCRED|prctl|sched_getaffinity|pidfd|memfd|epoll|"
    r"inotify|O_TMPFILE|O_PATH|sendfile|splice|SOCK_CLOEXEC|abstract socket|sys\.platform"
)
_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


def test_what_needs_linux_is_what_the_page_lists() -> None:
    package = Path(spark_eos.__file__).parent
    found = {
        str(path.relative_to(ROOT))
        for path in package.rglob("*.py")
        if _LINUX.search(path.read_text(encoding="utf-8"))
    }
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8").split("\n## macOS\n")[1]
    assert found <= {*re.findall(r"`(spark_eos/[\w/]+\.py)`", page)}


def test_a_session_is_found_and_killed_by_ps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_PROCESSES", tmp_path / "proc")
    log = tmp_path / "log"
    command = [sys.executable, "-c", _PARENT]
    with process.KillableProcess(command, log=log, directory=tmp_path, environment={}) as parent:
        while not log.read_text().endswith("\n"):
            assert parent.exit_status() is None
            time.sleep(0.01)
        child = int(log.read_text())
        assert child in {*process.session_members(os.getsid(child))}
    # An orphaned child is not this process's own, so poll for its end.
    while not _ended(child):
        time.sleep(0.01)


def _ended(pid: int) -> bool:
    found = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip()[:1] in {"", "Z"}


def test_a_worker_without_linux_options_leaves_sockets_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_connection, "_AT_ONCE", None)
    with socket.socket() as connection, os.fdopen(os.dup(connection.fileno()), "rb") as file:
        SparkConnection(file).acknowledge_at_once()
        assert connection.getblocking()


def test_a_link_is_refused_in_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").symlink_to(tmp_path)

    def as_on_macos(*_: object, **__: object) -> int:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    monkeypatch.setattr(os, "open", as_on_macos)
    with (
        pytest.raises(OSError, match="must be a directory, not a link or a file"),
        private_directory(tmp_path / "made"),
    ):
        pass


def test_a_closing_connection_was_closed_by_the_peer() -> None:
    assert closed_by_peer(OSError(errno.EPROTOTYPE, "Protocol wrong type for socket"))
    assert not closed_by_peer(OSError(errno.ENETUNREACH, "Network is unreachable"))


def test_the_java_that_macos_has_without_a_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java"
    java.write_text(
        "#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n",
        encoding="utf-8",
    )
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(JavaError, match="Unable to locate a Java Runtime"):
        find_java()
