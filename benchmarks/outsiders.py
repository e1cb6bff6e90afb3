"""Contestants without Spark, each in a process of its own."""

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
    """What a loop reads and writes.

    Attributes:
        bootstrap_servers: The broker's.
        source: Filled.
        target: Empty.
        rows: Records to pass on, no more than the source has.
        partitions: Of both.
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
    """Rows per second of a consume-transform-produce loop of confluent-kafka."""
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
    """Rows per second of one transactional producer that reads nothing."""
    return _rate(
        sys.executable,
        "ceiling.py",
        topics.bootstrap_servers,
        topics.target,
        topics.rows,
        topics.size,
    )


def quix(python: Path) -> Callable[[Topics], float]:
    """Rows per second of Quix Streams.

    Args:
        python: The interpreter of an environment that has it.
    """

    def rate(topics: Topics) -> float:
        return _rate(
            python, "quix.py", topics.bootstrap_servers, topics.source, topics.target, topics.rows
        )

    return rate
