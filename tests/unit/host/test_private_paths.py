"""Directories that a keeper's socket may lie in: nobody's but this user's."""

import grp
import os
import pwd
import stat
from pathlib import Path

import pytest

from spark_eos import errors
from spark_eos.datasource import keeper_client
from spark_eos.datasource.keeper_client import KeeperClient
from spark_eos.host.private_paths import check_owner
from support.intruding import (
    ANSWERS,
    NOBODY,
    framed,
    lasting_intruder,
    needs_root,
    payload,
    until_ready,
)

PLANTED = (
    "as_nobody(); os.rename(sys.argv[3] + '/keepers', sys.argv[3] + '/was')\n"
    "os.mkdir(sys.argv[3] + '/keepers')\n"
) + ANSWERS


@needs_root
def test_a_directory_planted_by_another_user_runs_no_code_here(short_directory: Path) -> None:
    """They own the parent, so they can put a directory of their own in the place of ours."""
    planted = short_directory / f"spark-eos-{os.geteuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    os.chown(planted, NOBODY, NOBODY)
    marker = short_directory / "ran"

    def ask_them() -> None:
        client = KeeperClient("group", "checkpoint", 10)
        answer = framed(payload(marker)).hex()
        with lasting_intruder(PLANTED, client._path, answer, planted) as process:
            try:
                until_ready(process)
                client.abort()
            finally:
                process.kill()
                assert not marker.exists(), "code of another user has run"

    with pytest.raises(errors.ConfigurationError, match=r"spark-eos-\d+.*user id 65534.*TMPDIR"):
        ask_them()


@pytest.mark.parametrize("level", ["spark-eos-{uid}", "spark-eos-{uid}/keepers"])
@pytest.mark.parametrize("what", ["a link", "writable", "a file"])
def test_each_level_is_checked(short_directory: Path, level: str, what: str) -> None:
    made = short_directory / level.format(uid=os.geteuid())
    made.parent.mkdir(mode=0o700, exist_ok=True)
    if what == "a link":
        (short_directory / "elsewhere").mkdir(mode=0o700)
        made.symlink_to(short_directory / "elsewhere")
    elif what == "a file":
        made.touch()
    else:
        made.mkdir()
        made.chmod(0o720)
    with pytest.raises(errors.ConfigurationError, match=f"{made}.*TMPDIR"):
        keeper_client._directory()


def test_what_an_earlier_version_left_open_to_readers_is_closed(short_directory: Path) -> None:
    made = short_directory / f"spark-eos-{os.geteuid()}"
    made.mkdir(mode=0o755)
    found = keeper_client._directory()
    for directory in (made, found):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@needs_root
def test_a_group_of_this_user_alone_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As directories are made under the umask 002 of systems that give each user a group."""
    user = pwd.getpwuid(1)
    mine = tmp_path / "cache"
    mine.mkdir()
    mine.chmod(0o775)
    os.chown(mine, user.pw_uid, user.pw_gid)
    monkeypatch.setattr(os, "geteuid", lambda: user.pw_uid)
    check_owner("cache", mine.stat(), or_root=True)

    mine.chmod(0o777)
    with pytest.raises(OSError, match="others may write"):
        check_owner("cache", mine.stat())
    mine.chmod(0o775)
    for group in (0, 2):
        os.chown(mine, user.pw_uid, group)
        with pytest.raises(OSError, match="others may write"):
            check_owner("cache", mine.stat())
    os.chown(mine, user.pw_uid, user.pw_gid)
    own = grp.getgrgid(user.pw_gid)
    shared = grp.struct_group((own.gr_name, "x", own.gr_gid, [own.gr_name, "nobody"]))
    monkeypatch.setattr(grp, "getgrgid", lambda _: shared)
    with pytest.raises(OSError, match="others may write"):
        check_owner("cache", mine.stat())
