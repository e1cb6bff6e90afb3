"""Runs each scenario's contestants in turn, on one broker and one Spark session."""

import dataclasses
import functools
import statistics
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import outsiders
from contestants import (
    BASE,
    OURS,
    Arena,
    Trial,
    contestants,
    our_sink,
    our_writer,
    own_writer,
    spark_eos,
)
from latency import latencies
from load import fill
from processes import Usage, used
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from results import Measured, percentile
from rich.console import Console
from scenarios import SPARE, Growth, Records, Throughput, Triggers

from spark_eos.testing import EmbeddedKafka

_PEAKS = ("driver", "workers")
_QUIX = "Quix Streams, exactly-once"
# Quix Streams gets this fraction of the rows: all of them would take minutes, at the same rate.
_SLOW = 10
_console = Console(stderr=True, highlight=False)


class Bench:
    """Runs scenarios.

    Args:
        broker: The broker.
        spark: The session.
        directory: Directory for checkpoints.
        rounds: Number of rounds that count.
        quix: Python interpreter with Quix Streams, if any.
    """

    def __init__(
        self,
        broker: EmbeddedKafka,
        spark: SparkSession,
        directory: Path,
        rounds: int,
        quix: Path | None,
    ) -> None:
        self._broker = broker
        self._spark = spark
        self._directory = directory
        self._rounds = rounds
        self._loops: dict[str, Callable[[outsiders.Topics], float]] = {
            "transactional loop": outsiders.plain_loop,
            "producer from memory": outsiders.ceiling,
        }
        if quix is not None:
            self._loops[_QUIX] = outsiders.quix(quix)

    @contextmanager
    def _topic(self, partitions: int) -> Iterator[str]:
        name = f"bench-{uuid.uuid4().hex[:8]}"
        self._broker.create_topic(name, partitions)
        yield name
        self._broker.delete_topic(name)

    @contextmanager
    def _filled(self, records: Records, rows: int) -> Iterator[str]:
        with self._topic(records.partitions) as source:
            fill(self._broker, source, rows, records)
            yield source

    def _arena(
        self, records: Records, source: str, target: str, most: int | None, batches: int
    ) -> Arena:
        return Arena(
            self._spark,
            self._broker.bootstrap_servers,
            source,
            target,
            self._directory,
            records.header,
            most,
            batches,
        )

    def _trial(
        self,
        name: str,
        contestant: Callable[[Arena], Trial],
        records: Records,
        source: str,
        most: int,
        batches: int,
    ) -> tuple[Trial, Usage]:
        """Runs a contestant, again if it fails: Spark's own sink fails after a delivery timeout."""

        def once() -> tuple[Trial, Usage]:
            with self._topic(records.partitions) as target, used(self._broker.pid) as usage:
                trial = contestant(self._arena(records, source, target, most, batches))
            return trial, usage

        try:
            return once()
        except StreamingQueryException as error:
            if name == OURS:
                raise
            _console.print(f"  {name} failed and runs again: {str(error)[:300]}")
            return once()

    def throughput(self, scenario: Throughput) -> Measured:
        """Measures rows per second of one large batch."""
        measured = Measured(scenario.name, "rows/s")
        records = scenario.records
        with self._filled(records, scenario.rows + SPARE * records.partitions) as source:
            for number in range(self._rounds + 1):
                for name, contestant in contestants(records.partitions).items():
                    trial, usage = self._trial(name, contestant, records, source, scenario.rows, 1)
                    if number:
                        rate = trial.rows / sum(trial.trigger_ms) * 1000
                        self._note(measured, name, rate)
                        measured.details[name] = _cpu(usage, trial.rows)
                if number and scenario.loops:
                    self._outside(measured, scenario, source)
        return measured

    def _outside(self, measured: Measured, scenario: Throughput, source: str) -> None:
        records = scenario.records
        for name, loop in self._loops.items():
            with self._topic(records.partitions) as target:
                topics = outsiders.Topics(
                    self._broker.bootstrap_servers,
                    source,
                    target,
                    scenario.rows // (_SLOW if name == _QUIX else 1),
                    records.partitions,
                    records.size,
                )
                self._note(measured, name, loop(topics))

    def triggers(self, scenario: Triggers) -> Measured:
        """Measures the milliseconds of a trigger."""
        measured = Measured(scenario.name, "ms per trigger")
        records = scenario.records
        rows = scenario.rows * scenario.batches + SPARE * records.partitions
        with self._filled(records, rows) as source:
            for number in range(self._rounds + 1):
                for name, contestant in contestants(records.partitions).items():
                    trial, _usage = self._trial(
                        name, contestant, records, source, scenario.rows, scenario.batches
                    )
                    if number:
                        warm = trial.trigger_ms[Triggers.WARM :]
                        self._note(measured, name, statistics.median(warm))
                        measured.details[name] = _steps(trial)
        return measured

    def latency(self, *, rate: int, seconds: float) -> Measured:
        """Measures the milliseconds from a record's append to its output's visibility."""
        measured = Measured(f"latency at {rate:,} records/s", "ms, p50")
        for number in range(self._rounds + 1):
            for name, start in _QUERIES.items():
                with self._topic(4) as source, self._topic(4) as target:
                    arena = self._arena(Records(100, 4), source, target, None, batches=0)
                    found = latencies(arena, functools.partial(start, arena), 4, rate, seconds)
                if number:
                    self._note(measured, name, statistics.median(found))
                    measured.details[name] = {"p99 ms": percentile(found, 0.99)}
        return measured

    def growth(self, scenario: Growth) -> Measured:
        """Measures the milliseconds that spark-eos spends on the driver per batch."""
        measured = Measured(scenario.name, "ms of the driver's own")
        for number in range(2):
            for partitions, members in scenario.sizes[: None if number else 1]:
                records = Records(100, partitions)
                rows = scenario.rows * partitions
                with (
                    self._filled(records, rows * scenario.batches + SPARE * partitions) as source,
                    self._topic(4) as target,
                ):
                    arena = self._arena(records, source, target, rows, scenario.batches)
                    trial = spark_eos(dataclasses.replace(arena, members=members))
                if number:
                    warm = [r.milliseconds for r in trial.reports[Triggers.WARM :]]
                    own = statistics.median(ms["total"] - ms["job"] for ms in warm)
                    name = f"{partitions} partitions, {members} member{'s' * (members > 1)}"
                    self._note(measured, name, own)
                    measured.details[name] = _steps(trial)
        return measured

    def _note(self, measured: Measured, name: str, figure: float) -> None:
        measured.add(name, figure)
        _console.print(f"  {measured.name}: {name}: {figure:,.1f} {measured.unit}")


def _cpu(usage: Usage, rows: int) -> dict[str, float]:
    """Returns CPU seconds per million rows, and peak memory."""
    cpu = {f"{part}, CPU s/M rows": s / rows * 1e6 for part, s in usage.cpu_seconds.items()}
    peaks = {f"{part}, peak MiB": mib for part, mib in usage.peak_mib.items() if part in _PEAKS}
    return {**cpu, **peaks}


def _steps(trial: Trial) -> dict[str, float]:
    """Returns medians of a trigger's steps: Spark's, and those of spark-eos if it has any."""
    warm = trial.progress[Triggers.WARM :]
    spark = {
        part: statistics.median(p["durationMs"].get(part, 0) for p in warm)
        for part in ("addBatch", "queryPlanning", "walCommit", "commitOffsets", "latestOffset")
    }
    reports = trial.reports[Triggers.WARM :]
    names = reports[0].milliseconds if reports else ()
    ours = {
        f"our {name}": statistics.median(r.milliseconds.get(name, 0.0) for r in reports)
        for name in names
    }
    return {**spark, **ours}


def _own_query(arena: Arena) -> StreamingQuery:
    return own_writer(arena).option("checkpointLocation", arena.checkpoint).start()


def _our_query(arena: Arena) -> StreamingQuery:
    return our_writer(our_sink(arena), arena).start()


_QUERIES: dict[str, Callable[[Arena], StreamingQuery]] = {BASE: _own_query, OURS: _our_query}
