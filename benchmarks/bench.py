"""Runs each scenario's contestants in turn, with a new broker per scenario and one Spark session.

Topics are not deleted while a scenario runs; they all disappear with its broker.
"""

import statistics
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import outsiders
from contestants import (
    BATCHES,
    BOUNDS,
    EQUAL,
    OURS,
    SHIPPED,
    SMALL_BATCHES,
    Arena,
    Trial,
    Writer,
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
from results import Measured, percentile
from rich.console import Console
from scenarios import SPARE, Growth, Latency, Records, Throughput, Triggers
from schema_queries import register
from turns import turns
from variants import CONTESTANTS

from spark_eos.testing import EmbeddedKafka, EmbeddedSchemaRegistry

_PEAKS: Final = ("driver", "workers", "jvm")
_LOOP: Final = "transactional loop"
_QUIX: Final = "Quix Streams, exactly-once"
# Quix Streams gets one in this many rows: all rows would take minutes, at the same rate.
_SLOW: Final = 10
_console = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Stage:
    """The environment that a scenario runs in.

    Attributes:
        broker: The scenario's broker.
        spark: The session.
        directory: Directory for checkpoints.
        records: The records in its topics.
        other: Another cluster, if there is one.
        registry: The address of the schema registry, if records have a schema.
        values: The records, if they have a schema.
    """

    broker: EmbeddedKafka
    spark: SparkSession
    directory: Path
    records: Records
    other: EmbeddedKafka | None = None
    registry: str = ""
    values: Sequence[bytes] = ()

    def source(self, rows: int) -> str:
        """Create a topic with records in this cluster and in the other one."""
        name = self.topic()
        fill(self.broker, name, rows, self.records, self.values)
        if self.other is not None:
            self.other.create_topic(name, self.records.partitions)
            fill(self.other, name, rows, self.records)
        return name

    def topic(self) -> str:
        """Create a topic."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        self.broker.create_topic(name, self.records.partitions)
        return name

    def arena(self, source: str, most: int | None, batches: int) -> Arena:
        """Return a contestant's topics and options, with a new target."""
        return Arena(
            self.spark,
            self.broker.bootstrap_servers,
            source,
            self.topic(),
            self.directory,
            self.records.header,
            most,
            batches,
            timestamp=self.records.timestamp,
            other_servers="" if self.other is None else self.other.bootstrap_servers,
            other_topic=self.topic,
            registry=self.registry,
        )


class Bench:
    """Runs scenarios.

    Args:
        spark: The session.
        directory: Directory for checkpoints.
        rounds: Number of rounds that count.
        quix: Python interpreter with Quix Streams, if any.
        bounds: Whether to measure queries that write nothing, too.
    """

    def __init__(
        self, spark: SparkSession, directory: Path, rounds: int, quix: Path | None, *, bounds: bool
    ) -> None:
        self._spark = spark
        self._directory = directory
        self._rounds = rounds
        self._quix = quix
        self._bounds = BOUNDS if bounds else {}

    @contextmanager
    def _stage(self, records: Records, variant: str = "") -> Iterator[Stage]:
        # The session has no quick start: the JVMs compile fully, for the highest speed.
        with EmbeddedKafka(heap="2g") as broker, ExitStack() as ending:
            # The other cluster always runs, so that all contestants get the same share of the
            # machine.
            mirrored = variant == "mirrored"
            other = ending.enter_context(EmbeddedKafka(heap="2g")) if mirrored else None
            stage = Stage(broker, self._spark, self._directory, records, other)
            if records.schema is not None:
                url = ending.enter_context(EmbeddedSchemaRegistry()).url
                stage = replace(stage, registry=url, values=register(url, records.schema))
            yield stage

    def throughput(self, scenario: Throughput) -> Measured:
        """Measure rows per second in large batches."""
        measured = Measured(scenario.name, "rows/s", base=scenario.base)
        records, batches = scenario.records, scenario.batches
        whole = scenario.rows * batches + SPARE * records.partitions
        with self._stage(records, scenario.variant) as stage, ExitStack() as ending:
            source = stage.source(whole)
            outside = self._outsiders(stage, ending) if scenario.outsiders else {}
            inside = self._contestants(BATCHES, scenario)
            for number, name in turns([*inside, *outside], self._rounds):
                if name in inside:
                    found = _trial(
                        measured, name, inside[name], stage, source, scenario.rows, batches
                    )
                    if found is None:
                        continue
                    trial, usage = found
                    rate = trial.rows_per_second(first=1)
                    details = {
                        "first batch, s": trial.trigger_ms[0] / 1000,
                        **_usage(usage, trial.rows(first=1)),
                    }
                else:
                    servers = stage.broker.bootstrap_servers
                    topics = outsiders.Topics(
                        servers, source, stage.topic(), whole, records.partitions
                    )
                    copied = outside[name](topics)
                    rate = copied.rows / copied.seconds
                    details = {
                        "workers, CPU s/M rows": copied.cpu_seconds / copied.rows * 1e6,
                        "workers, peak MiB": copied.peak_mib,
                    }
                note(measured, name, rate, counts=number > 0)
                measured.details[name] = details
        return measured

    def _outsiders(
        self, stage: Stage, ending: ExitStack
    ) -> dict[str, Callable[[outsiders.Topics], outsiders.Copied]]:
        found: dict[str, Callable[[outsiders.Topics], outsiders.Copied]] = {
            _LOOP: outsiders.plain_loop,
            **ending.enter_context(outsiders.java_relays(stage.broker.bootstrap_servers)),
        }
        if self._quix is not None:
            quix = self._quix
            found[_QUIX] = lambda topics: outsiders.script(
                quix, "quix.py", topics, topics.rows // _SLOW
            )
        return found

    def _contestants(
        self, usual: Mapping[str, Callable[[Arena], Trial]], scenario: Throughput | Triggers
    ) -> Mapping[str, Callable[[Arena], Trial]]:
        if scenario.variant:
            return CONTESTANTS[scenario.variant]
        if scenario.pair_only:
            return {name: usual[name] for name in (EQUAL, OURS)}
        return {**usual, **self._bounds}

    def triggers(self, scenario: Triggers) -> Measured:
        """Measure the milliseconds that a trigger takes."""
        measured = Measured(scenario.name, "ms per trigger", base=scenario.base)
        records = scenario.records
        contestants = self._contestants(SMALL_BATCHES, scenario)
        with self._stage(records, scenario.variant) as stage:
            # Spark may begin another batch before the query is stopped.
            rows = scenario.rows * (scenario.batches + 5) + SPARE * records.partitions
            source = stage.source(rows)
            for number, name in turns(list(contestants), self._rounds):
                found = _trial(
                    measured,
                    name,
                    contestants[name],
                    stage,
                    source,
                    scenario.rows,
                    scenario.batches,
                )
                if found is None:
                    continue
                trial, _ = found
                warm = trial.trigger_ms[scenario.warm :]
                note(measured, name, statistics.median(warm), counts=number > 0)
                measured.details[name] = _steps(trial, scenario.warm)
        return measured

    def latency(self, scenario: Latency) -> Measured:
        """Measure the milliseconds from a record's append until its output is visible."""
        measured = Measured(scenario.name, "ms, p50")
        records = Records(100, 4)
        with self._stage(records) as stage:
            for number, name in turns(list(_QUERIES), self._rounds):
                arena = stage.arena(stage.topic(), None, 0)
                writer = _QUERIES[name](arena)
                writer = writer.option("checkpointLocation", arena.checkpoint)
                found = latencies(arena, writer.start, records.partitions, scenario)
                note(measured, name, statistics.median(found), counts=number > 0)
                measured.details[name] = {
                    f"p{share * 100:g} ms": percentile(found, share) for share in (0.99, 0.999)
                }
        return measured

    def growth(self, scenario: Growth) -> Measured:
        """Measure the milliseconds that spark-eos spends on the driver per batch."""
        measured = Measured(scenario.name, "ms of the driver's own")
        for number in range(2):
            for partitions in scenario.sizes[: None if number else 1]:
                rows = scenario.rows * partitions
                with self._stage(Records(100, partitions)) as stage:
                    source = stage.source(rows * scenario.batches + SPARE * partitions)
                    arena = stage.arena(source, rows, scenario.batches)
                    trial = spark_eos(arena)
                warm = [r.milliseconds for r in trial.reports[scenario.warm :]]
                own = statistics.median(ms["total"] - ms["job"] for ms in warm)
                name = f"{partitions} partitions"
                note(measured, name, own, counts=number > 0)
                measured.details[name] = _steps(trial, scenario.warm)
        return measured


def _trial(
    measured: Measured,
    name: str,
    contestant: Callable[[Arena], Trial],
    stage: Stage,
    source: str,
    most: int,
    batches: int,
) -> tuple[Trial, Usage] | None:
    """Run a contestant, twice if it fails: Spark's own sink fails after a delivery timeout.

    After a second failure, the contestant is left out and None is returned.
    """
    if name in measured.failed:
        return None

    def once() -> tuple[Trial, Usage]:
        arena = stage.arena(source, most, batches)
        with used(stage.broker.pid) as usage:
            return contestant(replace(arena, warmed=usage.begin)), usage

    try:
        return once()
    except StreamingQueryException as error:
        if name == OURS:
            raise
        _console.print(f"  {name} failed and runs again: {str(error)[:300]}")
    try:
        return once()
    except StreamingQueryException as error:
        _console.print(f"  {name} failed again and is left out: {str(error)[:300]}")
        measured.leave_out(name)
        return None


def note(measured: Measured, name: str, figure: float, *, counts: bool) -> None:
    """Add a figure if it counts, and print it."""
    if counts:
        measured.add(name, figure)
    warming = "" if counts else " (does not count)"
    _console.print(
        f"  {measured.name}: {name}: {figure:,.1f} {measured.unit}{warming}", soft_wrap=True
    )


def _usage(usage: Usage, rows: int) -> dict[str, float]:
    """Return CPU seconds per million rows, and peak memory."""
    cpu = {f"{part}, CPU s/M rows": s / rows * 1e6 for part, s in usage.cpu_seconds.items()}
    peaks = {f"{part}, peak MiB": mib for part, mib in usage.peak_mib.items() if part in _PEAKS}
    return {**cpu, **peaks}


def _steps(trial: Trial, warm: int) -> dict[str, float]:
    """Return medians of a trigger's steps: Spark's and, if available, spark-eos's."""
    progress = trial.progress[warm:]
    spark = {
        part: statistics.median(p["durationMs"].get(part, 0) for p in progress)
        for part in ("addBatch", "queryPlanning", "walCommit", "commitOffsets", "latestOffset")
    }
    reports = trial.reports[warm:]
    names = reports[0].milliseconds if reports else ()
    ours = {
        f"our {name}": statistics.median(r.milliseconds.get(name, 0.0) for r in reports)
        for name in names
    }
    return {**spark, **ours}


def _our_query(arena: Arena, *, asynchronous: bool) -> Writer:
    arena = replace(arena, asynchronous=asynchronous)
    return our_writer(our_sink(arena), arena)


_QUERIES: Final[dict[str, Callable[[Arena], Writer]]] = {
    EQUAL: partial(own_writer, as_we_do=True),
    SHIPPED: own_writer,
    OURS: partial(_our_query, asynchronous=False),
    f"{OURS}, asynchronous_progress": partial(_our_query, asynchronous=True),
}
