"""Sets of jars, one per lock file: downloaded once, verified, kept in the cache directory."""

import hashlib
import json
import os
import re
import shutil
import tarfile
from importlib import metadata
from pathlib import Path, PurePosixPath

from spark_eos._jars import ivy
from spark_eos._jars.cache import JarError as JarError  # noqa: PLC0414 - raised by functions here
from spark_eos._jars.cache import (
    cache_directory,
    cached,
    check_trusted,
    locked,
    naming_the_variable,
)
from spark_eos._jars.lockfile import Lock, LockedJar, lock_names, read_lock

_STAMP = "verified.json"
_SPARK_KAFKA = "spark-kafka-"


def jar_set(name: str) -> list[Path]:
    """Return a set's verified jar files and unpacked archives, in class path order."""
    # Threads and processes may call this concurrently. If no file is missing, the call takes a few
    # milliseconds and starts no other program.
    try:
        lock = read_lock(name)
    except KeyError:
        raise JarError(f"No jar set {name!r}; available sets: {', '.join(lock_names())}") from None
    return locked_jars(lock)


def locked_jars(lock: Lock) -> list[Path]:
    """Return the verified jar files of a lock, as `jar_set` does."""
    with naming_the_variable():
        return _verified(lock)


def _verified(lock: Lock) -> list[Path]:
    directory = cache_directory() / "jars" / lock.name
    kept = [directory / jar.kept_name for jar in lock.jars]
    if not _all_stamped(lock, directory):
        with locked(cached("jars", lock.name) / ".lock"):
            _complete(lock, directory)
    unpacked = [file for path in kept if path.is_dir() for file in path.rglob("*")]
    for file in (directory / _STAMP, *kept, *unpacked):
        check_trusted(file)
    return kept


def spark_kafka_jars(pyspark_version: str | None = None) -> list[Path]:
    """Return the jar files of Spark's Kafka source, for the ``spark.jars`` setting."""
    version = installed_pyspark() if pyspark_version is None else pyspark_version
    return jar_set(_spark_kafka_set(version))


def _spark_kafka_set(pyspark_version: str) -> str:
    match = re.match(r"(\d+\.\d+)(\.|$)", pyspark_version)
    supported: set[str] = set()
    for name in lock_names():
        if name.startswith(_SPARK_KAFKA):
            minors = read_lock(name).pyspark
            if match and match[1] in minors:
                return name
            supported.update(minors)
    raise JarError(
        f"No Kafka source is known for pyspark {pyspark_version}; supported versions: "
        f"{', '.join(sorted(supported))}. Install one of these, for example with "
        f"pip install 'pyspark=={max(supported)}.*', or add the jars of spark-sql-kafka for your "
        "Spark to spark.jars yourself."
    )


def installed_pyspark() -> str:
    """Return the version of the installed pyspark."""
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        pass
    try:  # In a Spark distribution, pyspark is on the path without pip's metadata.
        from pyspark.version import __version__  # noqa: PLC0415
    except ImportError:
        raise JarError(
            "pyspark is not installed. Install it with: pip install pyspark 'pandas>=2.2,<3'"
        ) from None
    return str(__version__)


def _complete(lock: Lock, directory: Path) -> None:
    """Verify existing files and download missing files; the caller holds the lock."""
    work = directory / ".ivy"
    stamp = _read_stamp(directory)
    missing = [jar for jar in lock.jars if not _is_kept(jar, directory, stamp)]
    if missing:
        work.mkdir(mode=0o700, exist_ok=True)
        fetched = work / "fetched"
        # Ivy would leave a copy that an interrupted call has begun as it is.
        shutil.rmtree(fetched, ignore_errors=True)
        fetched.mkdir()
        ivy.download(missing, fetched, work=work, title=lock.name)
        try:
            for jar in missing:
                _verify(jar, fetched / jar.file_name)
            for jar in missing:
                _keep(jar, fetched / jar.file_name, directory / jar.kept_name)
        finally:
            # The directory only serves to resume an interrupted download, and must not keep a wrong
            # file.
            shutil.rmtree(work, ignore_errors=True)
    stamp |= {jar.kept_name: _mark(jar, directory) for jar in lock.jars}
    temporary = directory / f"{_STAMP}.new"
    temporary.touch(mode=0o644)
    temporary.write_text(json.dumps(stamp, indent=1), encoding="utf-8")
    temporary.replace(directory / _STAMP)


def _is_kept(jar: LockedJar, directory: Path, stamp: dict[str, list[object]]) -> bool:
    """Return True if the jar is cached; verify unstamped jars, and remove unstamped archives."""
    path = directory / jar.kept_name
    if not path.exists():
        return False
    if stamp.get(jar.kept_name) != _mark(jar, directory):
        if jar.is_archive:
            shutil.rmtree(path)
            return False
        _verify(jar, path)
    return True


def _verify(jar: LockedJar, path: Path) -> None:
    """Check a file's checksum, and remove the file if it is wrong."""
    actual = _sha256(path)
    if actual != jar.sha256:
        path.unlink()
        raise JarError(
            f"{path} has the wrong SHA-256 checksum and was removed: expected {jar.sha256}, actual "
            f"{actual}. Run the command again to download the file again. If this repeats, "
            "something between this machine and Maven Central alters files."
        )


def _keep(jar: LockedJar, fetched: Path, kept: Path) -> None:
    """Move a verified file to its place, or unpack it there."""
    if jar.is_archive:
        try:
            unpack(fetched, kept)
        except ValueError as error:
            raise JarError(str(error)) from error
    else:
        # Don't let other users write the file, whatever the umask.
        fetched.chmod(0o644)
        fetched.replace(kept)


def unpack(archive: Path, target: Path) -> None:
    """Unpack an archive into a directory that appears only when complete.

    Raises ValueError if the archive is hostile.
    """
    unfinished = archive.with_name(f"{target.name}.unpacking")
    shutil.rmtree(unfinished, ignore_errors=True)
    # Don't let other users write there, whatever the umask.
    unfinished.mkdir(mode=0o755)
    # Don't use tarfile's own filter: Python before 3.10.12 and 3.11.4 lacks it.
    with tarfile.open(archive) as members:
        for member in members:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
                raise ValueError(f"{archive.name} contains an unsafe member: {member.name!r}")
            for level in [*reversed(path.parents), *([path] if member.isdir() else [])]:
                (unfinished / level).mkdir(mode=0o755, exist_ok=True)
            content = members.extractfile(member)
            if content is not None:
                with (unfinished / path).open("wb") as file:
                    shutil.copyfileobj(content, file)
                (unfinished / path).chmod(0o644)
                # Use whole seconds, as container images don't keep fractions.
                os.utime(unfinished / path, (int(member.mtime), int(member.mtime)))
    unfinished.rename(target)


def _all_stamped(lock: Lock, directory: Path) -> bool:
    stamp = _read_stamp(directory)
    try:
        return all(stamp.get(jar.kept_name) == _mark(jar, directory) for jar in lock.jars)
    except FileNotFoundError:
        return False


def _mark(jar: LockedJar, directory: Path) -> list[object]:
    """Return a mark that identifies a file whose checksum was computed before."""
    path = directory / jar.kept_name
    if jar.is_archive:
        return [_content_mark(path), jar.sha256]
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, jar.sha256]


def _content_mark(directory: Path) -> str:
    """Return a hash of the names and sizes of an unpacked archive's files."""
    # Not of their times, which a copy of the cache may lack.
    directory.stat()  # raises if the directory is missing
    marks = []
    for path in sorted(directory.rglob("*")):
        status = path.stat()
        if not path.is_dir():
            marks.append(f"{path.relative_to(directory)} {status.st_size}")
    return hashlib.sha256("\n".join(marks).encode()).hexdigest()


def _read_stamp(directory: Path) -> dict[str, list[object]]:
    try:
        content = json.loads((directory / _STAMP).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
