"""Directories and files that belong to this user alone.

Each is opened before it is judged, without following a link, and what lies in a directory is
opened relative to that: what was judged is what is used, whatever becomes of the names meanwhile.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe in the place of a file must not be waited for.
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_LONGEST_TEXT: Final = 4096


@contextlib.contextmanager
def private_directory(
    path: Path, inside: int | None = None, *, readable: bool = False
) -> Iterator[int]:
    """Opens a directory of this user's, and makes it if it is not there.

    Args:
        path: The directory; its parent must be there.
        inside: Descriptor of the directory that a relative path starts from.
        readable: Whether others may look into it; if not, they lose the right to.

    Yields:
        Its descriptor.

    Raises:
        OSError: It is a link, belongs to another user, others may write in it, or it can't be used.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700, dir_fd=inside)
    try:
        descriptor = os.open(path, _DIRECTORY, dir_fd=inside)
    except NotADirectoryError:
        raise OSError(f"{path} must be a directory, and no link to one") from None
    try:
        found = os.fstat(descriptor)
        _check_owner(str(path), found)
        if not readable and stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(descriptor, 0o700)
        yield descriptor
    finally:
        os.close(descriptor)


def private_text(name: str, inside: int) -> str | None:
    """A short file's text; None if it is not there.

    Args:
        name: The file.
        inside: Descriptor of its directory.

    Raises:
        OSError: It is a link or no file, belongs to another user, others may write in it, or it
            can't be read.
    """
    try:
        descriptor = os.open(name, os.O_RDONLY | _FILE, dir_fd=inside)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OSError(f"{name} must be a file, and no link to one: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{name} must be a file")
        if found.st_uid == os.geteuid() and found.st_mode & _WRITABLE_BY_OTHERS:
            # As older versions made it under a generous umask: as good as none.
            return None
        _check_owner(name, found)
        return file.read(_LONGEST_TEXT).decode(errors="replace")


def write_private_text(name: str, text: str, inside: int) -> None:
    """Puts a file in place, whole or not at all; whatever has its name is replaced.

    Raises:
        OSError: It can't be written.
    """
    new = f"{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=inside)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=inside)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(new, name, src_dir_fd=inside, dst_dir_fd=inside)


def _check_owner(name: str, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise OSError(
            f"{name} belongs to user id {found.st_uid} and must belong to this one, {os.geteuid()}"
        )
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise OSError(
            f"{name} has mode {stat.S_IMODE(found.st_mode):04o}, so others may write there: remove "
            "it, or, if you know what is in it, chmod go-w"
        )


def default_directory() -> Path:
    """Where a host keeps its node id and slots: a private directory below the temporary one."""
    return Path(tempfile.gettempdir()) / f"spark-eos-{os.geteuid()}"
