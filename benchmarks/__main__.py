"""All benchmarks in one run: ``make bench``, or ``.venv/bin/python benchmarks --help``.

Contestants take turns within each round, the first round does not count, and what is told are
ratios within a round: machines are shared and noisy.
"""

import datetime
import functools
import os
import statistics
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import outsiders
from contestants import BASE, CONTESTANTS, Arena, Trial
from latency import latencies
from load import fill
from plots import plot
from processes import Usage, used
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from results import Measured, markdown, percentile, write_json
from rich.console import Console
from scenarios import Records, Throughput, Triggers, throughputs, triggers

from spark_eos import ExactlyOnceSink
from spark_eos.testing import EmbeddedKafka, spark_session

_WARM_TRIGGERS = 2
_PEAKS = ("driver", "workers")
_RESULTS = Path("docs/performance")
_console = Console(stderr=True, highlight=False)


class Bench:
    """What all scenarios share.

    Args:
        broker: the broker.
        spark: the session.
        directory: for checkpoints.
        rounds: rounds that count.
        quix: the interpreter that has Quix Streams, if any.
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
            self._loops["Quix Streams, exactly-once"] = outsiders.quix(quix)

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

    def _arena(self, records: Records, source: str, target: str, most: int | None) -> Arena:
        return Arena(
            self._spark,
            self._broker.bootstrap_servers,
            source,
            target,
            self._directory,
            records.header,
            most,
        )

    def throughput(self, scenario: Throughput) -> Measured:
        """Rows per second of one large batch."""
        measured = Measured(scenario.name, "rows/s")
        records = scenario.records
        with self._filled(records, scenario.rows) as source:
            for number in range(self._rounds + 1):
                for name, contestant in CONTESTANTS.items():
                    with self._topic(records.partitions) as target, used(self._broker.pid) as usage:
                        trial = contestant(self._arena(records, source, target, None))
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
                    scenario.rows,
                    records.partitions,
                    records.size,
                )
                self._note(measured, name, loop(topics))

    def triggers(self, scenario: Triggers) -> Measured:
        """Milliseconds of a trigger."""
        measured = Measured(scenario.name, "ms per trigger")
        records = scenario.records
        rows = scenario.rows * (scenario.count + _WARM_TRIGGERS)
        with self._filled(records, rows) as source:
            for number in range(self._rounds + 1):
                for name, contestant in CONTESTANTS.items():
                    with self._topic(records.partitions) as target:
                        arena = self._arena(records, source, target, scenario.rows)
                        trial = contestant(arena)
                    if number:
                        warm = trial.trigger_ms[_WARM_TRIGGERS:]
                        self._note(measured, name, statistics.median(warm))
                        measured.details[name] = _steps(trial)
        return measured

    def latency(self, *, rate: int, seconds: float) -> Measured:
        """Milliseconds from append to visibility."""
        measured = Measured(f"latency at {rate:,} records/s", "ms, p50")
        for number in range(self._rounds + 1):
            for name, start in _QUERIES.items():
                with self._topic(4) as source, self._topic(4) as target:
                    arena = self._arena(Records(100, 4), source, target, None)
                    found = latencies(arena, functools.partial(start, arena), 4, rate, seconds)
                if number:
                    self._note(measured, name, statistics.median(found))
                    measured.details[name] = {"p99 ms": percentile(found, 0.99)}
        return measured

    def _note(self, measured: Measured, name: str, figure: float) -> None:
        measured.add(name, figure)
        _console.print(f"  {measured.name}: {name}: {figure:,.0f} {measured.unit}")


def _cpu(usage: Usage, rows: int) -> dict[str, float]:
    """CPU seconds per million rows, and peaks."""
    cpu = {f"{part}, CPU s/M rows": s / rows * 1e6 for part, s in usage.cpu_seconds.items()}
    peaks = {f"{part}, peak MiB": mib for part, mib in usage.peak_mib.items() if part in _PEAKS}
    return {**cpu, **peaks}


def _steps(trial: Trial) -> dict[str, float]:
    """Medians of the parts of a trigger, ours where there are any."""
    warm = trial.progress[_WARM_TRIGGERS:]
    spark = {
        part: statistics.median(p["durationMs"].get(part, 0) for p in warm)
        for part in ("addBatch", "queryPlanning", "walCommit", "commitOffsets", "latestOffset")
    }
    reports = trial.reports[_WARM_TRIGGERS:]
    names = reports[0].milliseconds if reports else ()
    ours = {
        f"our {name}": statistics.median(r.milliseconds.get(name, 0.0) for r in reports)
        for name in names
    }
    return {**spark, **ours}


def _own_query(arena: Arena) -> StreamingQuery:
    options = {"kafka.bootstrap.servers": arena.bootstrap_servers, "topic": arena.target}
    writer = arena.read(as_we_do=False).writeStream.format("kafka").options(**options)
    return writer.option("checkpointLocation", arena.checkpoint).start()


def _eos_query(arena: Arena) -> StreamingQuery:
    sink = ExactlyOnceSink(
        kafka={"bootstrap.servers": arena.bootstrap_servers},
        group_id=arena.target,
        topic=arena.target,
        checkpoint_location=arena.checkpoint,
    )
    frame = sink.read(arena.spark, subscribe=arena.source).select("source", *arena.columns)
    return sink.write(frame).start()


_QUERIES: dict[str, Callable[[Arena], StreamingQuery]] = {BASE: _own_query, "spark-eos": _eos_query}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=3, show_default=True, help="Rounds that count.")
@click.option("--scale", default=1.0, show_default=True, help="Of the numbers of rows.")
@click.option("--only", help="Only scenarios with this in their name.")
@click.option("--quix", type=click.Path(path_type=Path), help="Python that has quixstreams.")
@click.option("--to", "directory", type=click.Path(path_type=Path), default=_RESULTS,
              show_default=True, help="Where results.json, .md and .png go.")  # fmt: skip
def main(
    *, rounds: int, scale: float, only: str | None, quix: Path | None, directory: Path
) -> None:
    """Compares spark-eos with what else there is."""
    chosen = only or ""
    measured: list[Measured] = []
    directory.mkdir(parents=True, exist_ok=True)
    # As fast as it gets: JVMs that compile all they want.
    with EmbeddedKafka(heap="2g") as broker, tempfile.TemporaryDirectory() as checkpoints:
        spark = spark_session(config={"spark.driver.memory": "3g"})
        bench = Bench(broker, spark, Path(checkpoints), rounds, quix)
        measured += [bench.throughput(s) for s in throughputs(scale) if chosen in s.name]
        measured += [bench.triggers(s) for s in triggers(scale) if chosen in s.name]
        if chosen in "latency":
            measured.append(bench.latency(rate=1_000, seconds=20 * scale))
        spark.stop()
    about = {
        "measured": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        "cores": os.cpu_count(),
        "rounds": rounds,
    }
    write_json(directory / "results.json", about, measured)
    (directory / "results.md").write_text("\n".join(map(markdown, measured)))
    plot(directory / "results.png", measured)
    Console().print((directory / "results.md").read_text(), markup=False)


if __name__ == "__main__":
    main()
