"""Contestants without Spark, each in its own process."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_LOOPS = Path(__file__).parent / "loops"
_PATIENCE = 600.0


@dataclass(frozen=True)
class Topics:
    """The topics that a loop reads and writes.

    Attributes:
        bootstrap_servers: The broker's address.
        source: Topic to read, filled.
        target: Topic to write, empty.
        rows: Number of records to copy, at most as many as the source has.
        partitions: Number of partitions of both topics.
        size: Bytes of a value.
    """

    bootstrap_servers: str
    source: str
    target: str
    rows: int
    partitions: int
    size: int


def _rate(python: Path | str, script: str, *arguments: object) -> float:
    ended = subprocess.run(
        [str(python), str(_LOOPS / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"{script}: {ended.stderr[-2_000:]}")
    return float(json.loads(ended.stdout.splitlines()[-1])["rows_per_second"])


def plain_loop(topics: Topics) -> float:
    """Returns the rows per second of a consume-transform-produce loop with confluent-kafka."""
    return _rate(
        sys.executable,
        "plain.py",
        topics.bootstrap_servers,
        topics.source,
        topics.target,
        topics.rows,
        topics.partitions,
    )


def ceiling(topics: Topics) -> float:
    """Returns the rows per second of one transactional producer that reads nothing."""
    return _rate(
        sys.executable,
        "ceiling.py",
        topics.bootstrap_servers,
        topics.target,
        topics.rows,
        topics.size,
    )


def quix(python: Path) -> Callable[[Topics], float]:
    """Returns the contestant Quix Streams, in rows per second.

    Args:
        python: Python interpreter with Quix Streams.
    """

    def rate(topics: Topics) -> float:
        return _rate(
            python, "quix.py", topics.bootstrap_servers, topics.source, topics.target, topics.rows
        )

    return rate
