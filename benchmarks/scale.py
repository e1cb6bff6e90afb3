"""Measures whole queries with many source partitions, topics and tasks: start, batches, takeover.

PYTHONPATH=tests .venv/bin/python benchmarks/scale.py

A batch has 20 records of 100 B per source partition. The query and its workers are killed (SIGKILL)
while half of its tasks have open transactions, or after ten seconds. Then the query is started
again, and ends the transactions left open. Machines are shared and noisy, so compare only lines of
the same run.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

import click
import psutil
from load import fill
from peak import peak_mib
from processes import of_query
from rich.console import Console
from scenarios import Records

from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.open_transactions import open_transactions
from spark_eos._kafka.transactional_ids import id_pattern
from spark_eos.testing import EmbeddedKafka

_QUERY: Final = str(Path(__file__).parent / "loops" / "scale_query.py")
_ROWS: Final = 20
_BATCHES: Final = 5
_WARM: Final = 2
# Seconds to wait for open transactions before the query is killed anyway.
_IN_VAIN: Final = 10.0
# Further batches of records, more than are read in that time.
_SPARE: Final = 20


@dataclass(frozen=True)
class Size:
    """The size of a query.

    Attributes:
        topics: Number of source topics, matched by a pattern.
        partitions: Number of partitions per topic.
        tasks: Number of concurrent tasks, each in its own worker: executors times cores.
    """

    topics: int
    partitions: int
    tasks: int

    @property
    def total(self) -> int:
        """Total number of source partitions."""
        return self.topics * self.partitions


_SIZES: Final = (
    Size(1, 250, 2),
    Size(1, 500, 2),
    Size(1, 1_000, 2),
    Size(75, 3, 2),
    Size(300, 3, 2),
    Size(1, 64, 64),
    Size(1, 1_000, 64),
)


class _Query:
    """A query's process and the lines that it prints."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            )
        self._output = cast("IO[str]", self._process.stdout)

    def next(self, what: str) -> dict[str, Any]:
        """Return the next line of a kind."""
        for line in self._output:
            if line.startswith("{") and (found := json.loads(line))["what"] == what:
                return dict(found)
        raise RuntimeError(f"the query has ended: {self._log.read_text()[-3000:]}")

    def peaks(self) -> dict[str, float]:
        """Return peak MiB of the driver's Python and JVM, and the workers' current unshared MiB."""
        found = {"driver": 0.0, "jvm": 0.0, "workers": 0.0}
        for role, process in of_query(psutil.Process(self._process.pid)):
            with suppress(psutil.Error):  # it has ended
                of_workers = role == "workers"
                mib = (
                    process.memory_full_info().uss / 2**20 if of_workers else peak_mib(process.pid)
                )
                found[role] += mib
        return found

    def kill(self) -> None:
        """Kill the query and all its child processes; may be called again."""
        if self._process.poll() is not None:
            return
        whole = psutil.Process(self._process.pid)
        for process in (*whole.children(recursive=True), whole):
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._output.close()


@contextmanager
def _query(broker: EmbeddedKafka, name: str, size: Size, place: Path) -> Iterator[_Query]:
    query = _Query(
        [
            *(sys.executable, _QUERY, broker.bootstrap_servers, name, f"in-{name}-.*"),
            *(f"out-{name}", str(place / name), str(size.tasks), str(_ROWS * size.total)),
        ],
        place / "log",
    )
    try:
        yield query
    finally:
        query.kill()


def _open(connections: Connections, name: str) -> int:
    found = open_transactions(connections, id_pattern("spark-eos", name), Deadline(30, "here"))
    return len(found)


def _measured(broker: EmbeddedKafka, size: Size, place: Path) -> dict[str, float]:
    name = f"{size.topics}-{size.partitions}-{size.tasks}"
    broker.create_topic(f"out-{name}", size.total)
    for number in range(size.topics):
        broker.create_topic(f"in-{name}-{number}", size.partitions)
        rows = size.partitions * _ROWS * (_BATCHES + _SPARE)
        fill(broker, f"in-{name}-{number}", rows, Records(100, size.partitions))
    settings = ClientSettings({"bootstrap.servers": broker.bootstrap_servers})
    with closing(Connections(settings)) as connections:
        with _query(broker, name, size, place) as query:
            session = query.next("session")["at"]
            batches = [query.next("batch") for _ in range(_BATCHES)]
            warm = batches[_WARM:]
            found = {
                "first batch s": batches[0]["at"] - session,
                "batch ms": statistics.median(one["total"] for one in warm),
                "driver's own ms": statistics.median(one["total"] - one["job"] for one in warm),
                "transactions": statistics.median(one["transactions"] for one in warm),
                **{f"{part} MiB": mib for part, mib in query.peaks().items()},
            }
            until = time.monotonic() + _IN_VAIN
            while 2 * _open(connections, name) < size.tasks and time.monotonic() < until:
                time.sleep(0.01)
            query.kill()
        found["left open"] = _open(connections, name)
        with _query(broker, name, size, place) as again:
            session = again.next("session")["at"]
            found["after SIGKILL, first batch s"] = again.next("batch")["at"] - session
    return found


@click.command()
@click.option("--only", type=int, help="Measure only this many of the sizes, from the first.")
def main(only: int | None) -> None:
    """Print a Markdown table with a line for each size."""
    print_line = Console(highlight=False, soft_wrap=True).print
    with tempfile.TemporaryDirectory() as directory, EmbeddedKafka(heap="2g") as broker:
        for number, size in enumerate(_SIZES[:only]):
            found = _measured(broker, size, Path(directory))
            if not number:
                print_line(f"| topics | partitions | tasks at once | {' | '.join(found)} |")
                print_line(f"{'| ---: ' * (len(found) + 3)}|")
            cells = [f"{one:,.1f}" if one < 10 else f"{one:,.0f}" for one in found.values()]
            print_line(f"| {size.topics} | {size.total:,} | {size.tasks} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
