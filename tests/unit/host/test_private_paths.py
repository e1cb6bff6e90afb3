"""Directories that only this user may access."""

import grp
import os
import pwd
import stat
from pathlib import Path

import pytest

from spark_eos._private_paths import check_owner, private_directory
from support.intruding import needs_root


@pytest.mark.parametrize("what", ["a link", "writable", "a file"])
def test_what_others_may_have_put_there_is_refused(tmp_path: Path, what: str) -> None:
    made = tmp_path / "made"
    if what == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        made.symlink_to(tmp_path / "elsewhere")
    elif what == "a file":
        made.touch()
    else:
        made.mkdir()
        made.chmod(0o720)
    with (
        pytest.raises(OSError, match=f"{made} (must be a directory|has mode 0720)"),
        private_directory(made),
    ):
        pass


@pytest.mark.parametrize("readable", [False, True])
def test_an_open_directory_is_made_private_unless_it_was_chosen(
    tmp_path: Path, *, readable: bool
) -> None:
    made = tmp_path / "made"
    made.mkdir(mode=0o755)
    with private_directory(made, readable=readable):
        assert stat.S_IMODE(made.stat().st_mode) == (0o755 if readable else 0o700)


@needs_root
def test_a_group_of_this_user_alone_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under the umask 002 of systems that give each user a group."""
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
