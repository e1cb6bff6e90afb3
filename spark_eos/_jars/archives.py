"""Archives of jars, which the cache keeps unpacked."""

import hashlib
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath


def unpack(archive: Path, target: Path) -> None:
    """Unpack an archive into a new directory, which is complete once it exists.

    Raises:
        ValueError: A member is neither a file nor a directory, or its path leads out of it.
    """
    unfinished = archive.with_name(f"{target.name}.unpacking")
    shutil.rmtree(unfinished, ignore_errors=True)
    # Others may not write there, whatever the umask.
    unfinished.mkdir(mode=0o755)
    # Not by tarfile's own filter, which Python has only since 3.10.12 and 3.11.4.
    with tarfile.open(archive) as members:
        for member in members:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
                raise ValueError(f"{archive.name} has a member that is refused: {member.name!r}")
            for level in [*reversed(path.parents), *([path] if member.isdir() else [])]:
                (unfinished / level).mkdir(mode=0o755, exist_ok=True)
            content = members.extractfile(member)
            if content is not None:
                with (unfinished / path).open("wb") as file:
                    shutil.copyfileobj(content, file)
                (unfinished / path).chmod(0o644)
                # In whole seconds, as images of containers keep them.
                os.utime(unfinished / path, (int(member.mtime), int(member.mtime)))
    unfinished.rename(target)


def content_mark(directory: Path) -> str:
    """Return a hash of the names, sizes and times of an unpacked archive's files.

    Raises:
        FileNotFoundError: The directory does not exist.
    """
    directory.stat()
    marks = []
    for path in sorted(directory.rglob("*")):
        found = path.stat()
        if not path.is_dir():
            marks.append(f"{path.relative_to(directory)} {found.st_size} {found.st_mtime_ns}")
    return hashlib.sha256("\n".join(marks).encode()).hexdigest()
