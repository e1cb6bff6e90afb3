"""Lock files: the jars of each set, with their SHA-256 checksums."""

import json
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class LockedJar:
    """One jar: its Maven coordinates and its SHA-256 checksum in hexadecimal digits."""

    organisation: str
    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Name of the jar file, for example ``kafka-clients-4.4.0.jar``."""
        return f"{self.name}-{self.version}.jar"


@dataclass(frozen=True)
class Lock:
    """A complete set of jars.

    Attributes:
        name: Name of the set, for example ``kafka-4.4.0``.
        jars: The jars, in class path order.
        pyspark: For Spark's Kafka source, the pyspark minor versions it fits (``"4.2"``).
    """

    name: str
    jars: tuple[LockedJar, ...]
    pyspark: tuple[str, ...] = ()


def lock_names() -> list[str]:
    """Return the names of all jar sets, sorted."""
    files = (resources.files(__package__) / "locks").iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


def read_lock(name: str) -> Lock:
    """Return the lock of the jar set `name`."""
    if name not in lock_names():
        raise KeyError(name)
    text = (resources.files(__package__) / "locks" / f"{name}.json").read_text(encoding="utf-8")
    return parse_lock(name, text)


def parse_lock(name: str, text: str) -> Lock:
    """Return the lock of a set with this name, from a lock file's text."""
    content = json.loads(text)
    return Lock(
        name=name,
        jars=tuple(LockedJar(**jar) for jar in content["jars"]),
        pyspark=tuple(content.get("pyspark", ())),
    )
