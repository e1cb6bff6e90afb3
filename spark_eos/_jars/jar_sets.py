"""Sets of jars, one per lock file: downloaded once, verified, kept in the cache directory."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from spark_eos._jars import ivy
from spark_eos._jars.cache import JarError as JarError  # noqa: PLC0414 - what is raised here
from spark_eos._jars.cache import cache_directory, cached, check_trusted, locked
from spark_eos._jars.lockfile import Lock, LockedJar, lock_names, read_lock

_STAMP = "verified.json"
_SPARK_KAFKA = "spark-kafka-"


def jar_set(name: str) -> list[Path]:
    """Return the verified jar files of a set, in class path order; download missing ones.

    Any number of threads and processes may call this at the same time. If no file is missing, it
    takes a few milliseconds and starts no other program.
    """
    try:
        lock = read_lock(name)
    except KeyError:
        raise JarError(f"No jar set {name!r}; there are: {', '.join(lock_names())}") from None
    return locked_jars(lock)


def locked_jars(lock: Lock) -> list[Path]:
    """Return the verified jar files of a lock, as `jar_set` does."""
    directory = cache_directory() / "jars" / lock.name
    files = [directory / jar.file_name for jar in lock.jars]
    if not _all_stamped(lock.jars, directory):
        with locked(cached("jars", lock.name) / ".lock"):
            _complete(lock, directory)
    for file in (directory / _STAMP, *files):
        check_trusted(file)
    return files


def spark_kafka_jars(pyspark_version: str | None = None) -> list[Path]:
    """Return the jar files of Spark's Kafka source, for the ``spark.jars`` setting."""
    return jar_set(_spark_kafka_set(pyspark_version or installed_pyspark()))


def _spark_kafka_set(pyspark_version: str) -> str:
    found = re.match(r"(\d+\.\d+)(\.|$)", pyspark_version)
    supported: set[str] = set()
    for name in lock_names():
        if name.startswith(_SPARK_KAFKA):
            minors = read_lock(name).pyspark
            if found and found[1] in minors:
                return name
            supported.update(minors)
    raise JarError(
        f"No Kafka source is known for pyspark {pyspark_version}; supported are pyspark "
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
    try:  # A Spark distribution puts pyspark on the path without pip's metadata.
        from pyspark.version import __version__  # noqa: PLC0415
    except ImportError:
        raise JarError(
            "pyspark is not installed. Install it with: pip install pyspark 'pandas>=2.2,<3'"
        ) from None
    return str(__version__)


def _complete(lock: Lock, directory: Path) -> None:
    """Verify existing files and download the others; the caller holds the lock."""
    work = directory / ".ivy"
    missing = [jar for jar in lock.jars if not (directory / jar.file_name).exists()]
    stamp = _read_stamp(directory)
    stamp.update(_verify((jar for jar in lock.jars if jar not in missing), directory, stamp))
    if missing:
        work.mkdir(mode=0o700, exist_ok=True)
        fetched = work / "fetched"
        fetched.mkdir(exist_ok=True)
        ivy.download(missing, fetched, work=work, title=lock.name)
        try:
            _verify(missing, fetched, {})
            for jar in missing:
                # Others may not write to it, whatever the umask.
                (fetched / jar.file_name).chmod(0o644)
                (fetched / jar.file_name).replace(directory / jar.file_name)
                stamp[jar.file_name] = _mark(jar, directory / jar.file_name)
        finally:
            # It only serves to resume an interrupted download, and a wrong file must not stay.
            shutil.rmtree(work, ignore_errors=True)
    temporary = directory / f"{_STAMP}.new"
    temporary.touch(mode=0o644)
    temporary.write_text(json.dumps(stamp, indent=1), encoding="utf-8")
    temporary.replace(directory / _STAMP)


def _verify(
    jars: Iterable[LockedJar], directory: Path, stamp: dict[str, list[object]]
) -> dict[str, list[object]]:
    """Check every file's checksum, unless its stamp is current; return the current stamps."""
    marks = {}
    for jar in jars:
        path = directory / jar.file_name
        mark = _mark(jar, path)
        if stamp.get(jar.file_name) != mark:
            actual = _sha256(path)
            if actual != jar.sha256:
                path.unlink()
                raise JarError(
                    f"{path} has the wrong SHA-256 checksum and was removed: expected "
                    f"{jar.sha256}, actual {actual}. Run the command again to download the file "
                    "again. If this repeats, something between this machine and Maven Central "
                    "alters files."
                )
        marks[jar.file_name] = mark
    return marks


def _all_stamped(jars: Iterable[LockedJar], directory: Path) -> bool:
    stamp = _read_stamp(directory)
    try:
        return all(
            stamp.get(jar.file_name) == _mark(jar, directory / jar.file_name) for jar in jars
        )
    except FileNotFoundError:
        return False


def _mark(jar: LockedJar, path: Path) -> list[object]:
    """Return size, time and checksum, which identify a file whose checksum was computed before."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, jar.sha256]


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
