"""Transactional ids depend only on files of this user, whatever other users create."""

import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from spark_eos import errors
from spark_eos._kafka.transactional_ids import id_pattern
from spark_eos._worker import slot
from spark_eos._worker.slot import Slot
from support.intruding import NOBODY, needs_root

HOST = os.uname().nodename
KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n"


def _slot(directory: Path) -> Slot:
    return Slot("spark-eos", "group", str(directory))


def _refused(directory: Path, words: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=f"worker_directory.*{words}"):
        _slot(directory)


@pytest.fixture
def workers(tmp_path: Path) -> Path:
    (tmp_path / "workers").mkdir(mode=0o700)
    return tmp_path / "workers"


def test_a_planted_link_takes_no_private_key_into_an_id(workers: Path, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(KEY)
    (workers / f"node-{HOST}").symlink_to(tmp_path / "key.pem")
    _refused(workers, f"node-{HOST} must be a file, not a link")
    assert (tmp_path / "key.pem").read_text() == KEY


@pytest.mark.parametrize(
    "text", [KEY, "", "elsewhere-01234567", f"{HOST}-0123456", f"{HOST}-01234567\n", "a/b", "\0"]
)
def test_a_node_id_that_none_would_write_is_replaced(workers: Path, text: str) -> None:
    (workers / f"node-{HOST}").write_text(text)
    slot = _slot(workers)
    assert re.fullmatch(id_pattern("spark-eos", "group"), slot.transactional_id)
    node = (workers / f"node-{HOST}").read_text()
    assert re.fullmatch(rf"{re.escape(HOST)}-[0-9a-f]{{8}}", node)
    assert re.fullmatch(rf"spark-eos/group/{node}-\d+/0", slot.transactional_id)
    slot.release()
    assert _slot(workers).transactional_id == slot.transactional_id


def test_a_node_file_that_is_no_file_is_refused(workers: Path) -> None:
    os.mkfifo(workers / f"node-{HOST}")
    _refused(workers, "must be a file")


@needs_root
def test_a_node_file_of_another_user_is_refused(workers: Path) -> None:
    file = workers / f"node-{HOST}"
    file.write_text(f"{HOST}-01234567")
    os.chown(file, NOBODY, NOBODY)
    _refused(workers, "user id 65534")


def test_a_directory_that_others_may_write_in_is_refused(workers: Path) -> None:
    workers.chmod(0o1777)
    _refused(workers, "1777.*chmod go-w")


def test_others_may_look_into_a_directory_that_was_chosen(workers: Path) -> None:
    workers.chmod(0o755)
    _slot(workers)
    assert stat.S_IMODE(workers.stat().st_mode) == 0o755
    # What they could hold a lock by, they can't open.
    for path in workers.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_the_default_directory_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    default = tmp_path / f"spark-eos-{os.geteuid()}"
    default.mkdir(mode=0o755)
    Slot("spark-eos", "group", None)
    assert stat.S_IMODE(default.stat().st_mode) == 0o700


def test_a_linked_directory_of_locks_is_refused(workers: Path, tmp_path: Path) -> None:
    _slot(workers).release()
    (locks,) = (path for path in workers.iterdir() if path.is_dir())
    for file in locks.iterdir():
        file.unlink()
    locks.rmdir()
    (tmp_path / "elsewhere").mkdir()
    locks.symlink_to(tmp_path / "elsewhere")
    _refused(workers, "must be a directory, not a link")


def test_a_lock_that_is_held_is_named(workers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "_LOCK_SECONDS", 0.5, raising=False)
    lock = workers / f"node-{HOST}.lock"
    holding = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", holding, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            _refused(workers, re.escape(str(lock)))
        finally:
            process.kill()


def test_slots_are_the_lowest_free_ones(tmp_path: Path) -> None:
    directory = str(tmp_path)
    slots = [Slot("p", "g", directory) for _ in range(3)]
    assert [s.transactional_id.rsplit("/", 1)[1] for s in slots] == ["0", "1", "2"]
    assert len({s.transactional_id.rsplit("-", 1)[0] for s in slots}) == 1
    assert Slot("p", "other", directory).transactional_id.endswith("/0")
    slots[1].release()
    assert Slot("p", "g", directory).transactional_id == slots[1].transactional_id


def test_a_slot_whose_lock_file_was_removed_is_no_others(workers: Path) -> None:
    first = _slot(workers)
    for cleaned in range(3):
        for file in workers.rglob("slot-*.lock"):
            file.unlink()
        assert _slot(workers).transactional_id != first.transactional_id, cleaned


def test_a_directory_that_can_not_be_used() -> None:
    with pytest.raises(errors.ConfigurationError, match="worker_directory"):
        Slot("p", "g", "/proc/nowhere")
