"""Directories and files that belong only to this user."""

# Directories and files are opened without following links, and checked afterwards. Files are opened
# relative to the open directory. So the object that was checked is the object that is used, even if
# names change in the meantime.

import contextlib
import errno
import grp
import os
import pwd
import shlex
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening must not wait if the name belongs to a pipe.
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_MAX_BYTES: Final = 4096


@contextlib.contextmanager
def private_directory(
    path: Path, inside: int | None = None, *, readable: bool = False
) -> Iterator[int]:
    """Open a directory of this user, creating it if needed."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700, dir_fd=inside)
    try:
        descriptor = os.open(path, _DIRECTORY, dir_fd=inside)
    except OSError as error:
        # Linux and other systems report a link with different codes.
        if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
            raise
        raise OSError(f"{path} must be a directory, not a link or a file") from None
    try:
        status = os.fstat(descriptor)
        check_owner(str(path), status)
        if not readable and stat.S_IMODE(status.st_mode) & 0o077:
            os.fchmod(descriptor, 0o700)
        yield descriptor
    finally:
        os.close(descriptor)


def private_text(name: str, inside: int) -> str | None:
    """Read the text of a short file; None if there is no trustworthy file."""
    try:
        descriptor = os.open(name, os.O_RDONLY | _FILE, dir_fd=inside)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OSError(f"{name} must be a file, not a link: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{name} must be a file")
        if status.st_uid == os.geteuid() and status.st_mode & _WRITABLE_BY_OTHERS:
            # Older versions created such files under a permissive umask. Ignore them.
            return None
        check_owner(name, status)
        return file.read(_MAX_BYTES).decode(errors="replace")


def write_private_text(name: str, text: str, inside: int) -> None:
    """Write a file atomically, replacing anything of the same name."""
    new = f"{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=inside)
    descriptor = open_private(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, inside)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(new, name, src_dir_fd=inside, dst_dir_fd=inside)


def open_private(name: str, flags: int, inside: int) -> int:
    """Open a file, not a link; if it is created, only this user may read and write it."""
    return os.open(name, flags | _FILE, 0o600, dir_fd=inside)


def check_owner(
    name: str, status: os.stat_result, *, or_root: bool = False, or_open: bool = False
) -> None:
    """Refuse a path that other users may write; this user's private group is allowed."""
    if status.st_uid != os.geteuid() and not (or_root and status.st_uid == 0):
        raise OSError(
            f"{name} belongs to user id {status.st_uid}; it must belong to this user, "
            f"{os.geteuid()}{' or to root' if or_root else ''}"
        )
    others = stat.S_IWOTH if _is_private_group(status.st_gid) else _WRITABLE_BY_OTHERS
    if not or_open and status.st_mode & others:
        raise OSError(
            f"{name} has mode {stat.S_IMODE(status.st_mode):04o}, so others may write there: if "
            f"you trust its contents, run chmod go-w {shlex.quote(name)}, otherwise remove it"
        )


def _is_private_group(group_id: int) -> bool:
    """Return True if a group is private to this user, as on systems with a umask of 002."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(group_id)
    except KeyError:
        return False
    # Containers put users of any id in root's group.
    own = group_id == user.pw_gid != 0 and group.gr_name == user.pw_name
    return own and set(group.gr_mem) <= {user.pw_name}


def check_way(path: Path) -> None:
    """Refuse a path that users other than this one and root can change or redirect."""
    for part in (*reversed(path.parents), path):
        itself, target = part.lstat(), part.stat()
        if stat.S_ISLNK(itself.st_mode):
            check_owner(str(part), itself, or_root=True, or_open=True)
            check_way(part.parent / part.readlink())
        sticky = part != path and bool(target.st_mode & stat.S_ISVTX)
        check_owner(str(part), target, or_root=True, or_open=sticky)


def default_directory() -> Path:
    """Return the directory below the temporary directory for a host's node id and slots."""
    return Path(tempfile.gettempdir()) / f"spark-eos-{os.geteuid()}"
