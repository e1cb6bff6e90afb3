"""Contestants without Spark, each in its own process."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from peak import peak_mib

from spark_eos._jars.jar_sets import locked_jars
from spark_eos._jars.java import find_java
from spark_eos._jars.lockfile import parse_lock

_HERE = Path(__file__).parent
_PATIENCE = 600.0


@dataclass(frozen=True)
class Topics:
    """The topics to copy from and to.

    Attributes:
        bootstrap_servers: The broker's address.
        source: Topic to read, filled.
        target: Topic to write, empty.
        rows: Number of records in the source.
        partitions: Number of partitions of both topics.
    """

    bootstrap_servers: str
    source: str
    target: str
    rows: int
    partitions: int


@dataclass(frozen=True)
class Copied:
    """The result of a contestant.

    Attributes:
        rows: Number of records.
        seconds: Time from the first record until all records were committed.
        cpu_seconds: CPU time of the process, including its start if it starts for each copy.
        peak_mib: Peak resident memory of the process; 0 if unknown.
    """

    rows: int
    seconds: float
    cpu_seconds: float
    peak_mib: float = 0.0


def script(python: Path | str, name: str, topics: Topics, rows: int) -> Copied:
    """Run one of the Python loops.

    Args:
        python: The interpreter.
        name: Name of the loop's file.
        topics: The topics to copy from and to.
        rows: Number of records to copy, at most as many as the source has.
    """
    arguments = [topics.bootstrap_servers, topics.source, topics.target, rows, topics.partitions]
    ended = subprocess.run(
        [str(python), str(_HERE / "loops" / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"{name}: {ended.stderr[-2_000:]}")
    found = json.loads(ended.stdout.splitlines()[-1])
    return Copied(rows, found["seconds"], found["cpu_seconds"])


def plain_loop(topics: Topics) -> Copied:
    """Copy with a consume-transform-produce loop that uses confluent-kafka."""
    return script(sys.executable, "plain.py", topics, topics.rows)


class JavaRelay:
    """A Java process that copies topics, one after another.

    Args:
        source: Name of the program's source file.
        lock: Name of the lock file of the program's jars.
        arguments: The program's arguments.
    """

    def __init__(self, source: str, lock: str, *arguments: str) -> None:
        text = (_HERE / "locks" / f"{lock}.json").read_text(encoding="utf-8")
        jars = locked_jars(parse_lock(lock, text))
        self._classes = tempfile.TemporaryDirectory()
        java = find_java().executable
        path = ":".join([*map(str, jars), self._classes.name])
        file = str(_HERE / "java" / source)
        compiler = str(java.with_name("javac"))
        subprocess.run([compiler, "-cp", path, "-d", self._classes.name, file], check=True)
        self._process = subprocess.Popen(
            [str(java), "-cp", path, Path(source).stem, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._watched = psutil.Process(self._process.pid)

    def __call__(self, topics: Topics) -> Copied:
        """Copy a topic."""
        asked, answers = self._process.stdin, self._process.stdout
        if asked is None or answers is None:
            raise RuntimeError("it has no pipes")
        before = self._watched.cpu_times()
        asked.write(f"{topics.source} {topics.target} {topics.rows}\n")
        asked.flush()
        answer = answers.readline()
        if not answer:
            raise RuntimeError(f"it ended with exit status {self._process.wait()}")
        after = self._watched.cpu_times()
        used = after.user + after.system - before.user - before.system
        return Copied(topics.rows, float(answer), used, peak_mib(self._process.pid))

    def close(self) -> None:
        """End the process."""
        self._process.communicate("", timeout=60)
        self._classes.cleanup()


@contextmanager
def java_relays(bootstrap_servers: str) -> Iterator[dict[str, JavaRelay]]:
    """Run Kafka Streams and Flink while the block runs."""
    with tempfile.TemporaryDirectory() as state:
        relays = {
            f"Kafka Streams 4.3.1, {guarantee}": JavaRelay(
                "StreamsRelay.java", "kafka-streams-4.3.1", bootstrap_servers, guarantee, state
            )
            for guarantee in ("exactly_once_v2", "at_least_once")
        }
        relays["Flink 2.2.0, exactly-once"] = JavaRelay(
            "FlinkRelay.java", "flink-2.2.0", bootstrap_servers
        )
        try:
            yield relays
        finally:
            for relay in relays.values():
                relay.close()
