"""Who is let in by a keeper, and by those who ask it: nobody but this user, and nothing unread."""

import contextlib
import multiprocessing
import os
import signal
import socket
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from spark_eos import errors
from support.data_sources import keepers
from support.flow import Flow
from support.intruding import (
    ANSWERS,
    framed,
    intruder,
    lasting_intruder,
    needs_root,
    payload,
    until_ready,
)
from support.keeping import Keeping, keeping


def _connected(kept: Keeping) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(30)
    peer.connect(str(kept.client._path))
    return peer


def _all(peer: socket.socket) -> bytes:
    """What comes until the other end closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := peer.recv(100_000):
            received += part
    return received


# The other end -------------------------------------------------------------------------------


def test_who_reads_what_is_planted_is_found_out(tmp_path: Path) -> None:
    """Else the tests below would see nothing happen, whatever happens."""
    marker = tmp_path / "ran"
    here, there = multiprocessing.Pipe()
    with here, there:
        os.write(here.fileno(), framed(payload(marker)))
        there.recv().close()
    assert marker.exists()


def test_a_keeper_unpickles_nothing(kept: Keeping, tmp_path: Path) -> None:
    kept.batch(0, 2, 2)
    (keeper,) = keepers(kept.flow)
    marker = tmp_path / "ran"
    with closing(_connected(kept)) as peer:
        peer.sendall(framed(payload(marker)))
        peer.shutdown(socket.SHUT_WR)
        _all(peer)
    assert not marker.exists()
    # And whoever sends nonsense ends nothing.
    assert kept.batch(1, 3, 3).rows_written == 2
    assert keepers(kept.flow) == [keeper]


def test_nothing_is_unpickled_from_a_keeper(kept: Keeping, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path = kept.client._path
    with lasting_intruder(ANSWERS, path, framed(payload(marker)).hex()) as process:
        try:
            until_ready(process)
            with pytest.raises(errors.SparkEosError):
                kept.client.abort()
        finally:
            process.kill()
            path.unlink()
    assert not marker.exists()


@needs_root
def test_a_keeper_does_not_listen_to_another_user(
    short_directory: Path, flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = short_directory / "ran"
    with keeping(flow, monkeypatch) as kept:
        kept.batch(0, 2, 2)
        path = kept.client._path
        # As if the directory had been opened after it was checked.
        for directory in (path.parent, path.parent.parent):
            directory.chmod(0o755)
        path.chmod(0o777)
        asking = (
            "as_nobody(); peer = socket.socket(socket.AF_UNIX); peer.settimeout(30)\n"
            "peer.connect(sys.argv[1])\n"
            "try:\n    peer.sendall(bytes.fromhex(sys.argv[2]))\n    print(peer.recv(100))\n"
            "except (BrokenPipeError, ConnectionResetError):\n    print('refused')\n"
        )
        told = intruder(asking, path, framed(payload(marker)).hex())
        assert not marker.exists(), "code of another user has run"
        assert told.strip() in {"refused", "b''"}
        for directory in (path.parent, path.parent.parent):
            directory.chmod(0o700)
        assert kept.batch(1, 3, 3).rows_written == 2


@needs_root
def test_a_keeper_of_another_user_is_not_asked(kept: Keeping, tmp_path: Path) -> None:
    """SO_PEERCRED tells who listens, wherever the socket is."""
    marker = tmp_path / "ran"
    path = kept.client._path
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listening = (
            "as_nobody(); listener = socket.socket(fileno=int(sys.argv[1])); listener.listen()\n"
            "print('ready', flush=True); peer, _ = listener.accept()\n"
            "peer.sendall(bytes.fromhex(sys.argv[2])); peer.settimeout(20)\n"
            "print(peer.recv(100_000))\n"
        )
        with lasting_intruder(
            listening,
            listener.fileno(),
            framed(payload(marker)).hex(),
            sockets=(listener.fileno(),),
        ) as process:
            until_ready(process)
            with pytest.raises(errors.SparkEosError, match="user id 65534"):
                kept.client.abort()
            output, _ = process.communicate(timeout=60)
    path.unlink()
    assert not marker.exists(), "code of another user has run"
    assert "b''" in output or "Reset" in output or "Broken" in output, "they were told something"


# Waits ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_half_a_request_does_not_hold_the_keeper(kept: Keeping) -> None:
    kept.batch(0, 2, 2)
    with closing(_connected(kept)) as peer:
        peer.sendall(b"\0\0")
        assert kept.batch(1, 3, 3).rows_written == 2


def test_a_keeper_that_does_not_answer_is_waited_for_no_longer_than_allowed(kept: Keeping) -> None:
    kept.batch(0, 2, 2)
    kept.begin(1, 3, 3)
    (keeper,) = keepers(kept.flow)
    kept.answer_within = 0.5
    os.kill(keeper, signal.SIGSTOP)
    try:
        with pytest.raises(
            errors.DeadlineExceededError, match=rf"process {keeper}.*group_timeout_ms"
        ):
            kept.plan()
    finally:
        os.kill(keeper, signal.SIGCONT)


def test_a_keeper_that_does_not_get_ready_is_given_up(
    kept: Keeping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "if 'spark_eos.datasource.keeper' in sys.orig_argv:\n"
        "    time.sleep(600)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    kept.settings = {"connect_timeout_ms": 1_000}
    kept.begin(0, 2, 2)
    # No other test's keeper starts there, which would hold the lock. A socket's path is short.
    with tempfile.TemporaryDirectory(prefix="eos-") as own:
        monkeypatch.setattr(tempfile, "tempdir", own)
        with pytest.raises(
            errors.DeadlineExceededError, match=r"spark_eos\.datasource\.keeper.*connect_timeout_ms"
        ):
            kept.plan()
    assert keepers(kept.flow) == []


def test_files_in_the_working_directory_shadow_no_module_of_a_keeper(
    kept: Keeping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "ran"
    for name in ("runpy", "contextlib", "kafka", "spark_eos"):
        (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    kept.settings = {"connect_timeout_ms": 10_000}
    assert kept.batch(0, 2, 2).rows_written == 4
    assert not marker.exists()


def test_a_keeper_that_says_so_in_parts_is_ready(
    kept: Keeping, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Spark sets this for its workers; then Python writes a line and its end separately."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "YES")
    kept.batch(0, 2, 2)
    assert "BrokenPipeError" not in capfd.readouterr().err


def test_the_lock_is_waited_for_no_longer_than_allowed(kept: Keeping) -> None:
    lock = kept.client._path.parent / "lock"
    holding = (
        "import fcntl; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    kept.settings = {"connect_timeout_ms": 1_000}
    kept.begin(0, 2, 2)
    with lasting_intruder(holding, lock) as process:
        try:
            until_ready(process)
            with pytest.raises(errors.DeadlineExceededError, match=rf"{lock}.*connect_timeout_ms"):
                kept.plan()
        finally:
            process.kill()
