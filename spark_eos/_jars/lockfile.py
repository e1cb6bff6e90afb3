"""Lock files: the jars of each set, with their SHA-256 checksums."""

import json
from dataclasses import dataclass
from importlib import resources
from typing import Final

_ARCHIVE: Final = ".tar.gz"


@dataclass(frozen=True)
class LockedJar:
    """A jar, or an archive of jars, with its Maven coordinates and its checksum."""

    organisation: str  # the group id
    name: str  # the artifact id
    version: str
    sha256: str  # of the downloaded file, in hexadecimal
    classifier: str = ""
    extension: str = "jar"  # tar.gz for archives, which are kept unpacked

    @property
    def file_name(self) -> str:
        """The name of the downloaded file, for example ``kafka-clients-4.4.0.jar``."""
        return f"{self.kept_name}{_ARCHIVE}" if self.is_archive else self.kept_name

    @property
    def kept_name(self) -> str:
        """The name of the jar, or of the archive's directory, in the cache."""
        stem = "-".join(filter(None, (self.name, self.version, self.classifier)))
        return stem if self.is_archive else f"{stem}.{self.extension}"

    @property
    def is_archive(self) -> bool:
        """True for an archive, which is kept unpacked."""
        return f".{self.extension}" == _ARCHIVE


@dataclass(frozen=True)
class Lock:
    """A complete set of jars, such as ``kafka-4.4.0``."""

    name: str
    jars: tuple[LockedJar, ...]  # in class path order
    pyspark: tuple[str, ...] = ()  # minor versions that the Kafka source fits, such as 4.2


def lock_names() -> list[str]:
    """Return the names of all jar sets, sorted."""
    files = (resources.files(__package__) / "locks").iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


def read_lock(name: str) -> Lock:
    if name not in lock_names():
        raise KeyError(name)
    text = (resources.files(__package__) / "locks" / f"{name}.json").read_text(encoding="utf-8")
    return parse_lock(name, text)


def parse_lock(name: str, text: str) -> Lock:
    """Parse a lock file's text into the lock of the named set."""
    content = json.loads(text)
    return Lock(
        name=name,
        jars=tuple(LockedJar(**jar) for jar in content["jars"]),
        pyspark=tuple(content.get("pyspark", ())),
    )
