"""The two scenarios. In both, each sink's query is killed twice in the middle of a batch.

In the first scenario, the query copies orders, and loses its checkpoint before its last start. In
the second scenario, it counts orders by customer and window.
"""

import json
import shutil
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import OffsetSpec
from rich.console import Console

from demo.report import Report, table
from demo.step import Step
from demo.watching import Checkpoint, RunningBatch, TargetReader
from spark_eos._python_module import python_module
from spark_eos.errors import PrintableError
from spark_eos.testing import EmbeddedKafka
from spark_eos.verify import compare
from support.killable_process import KillableProcess

PARTITIONS: Final = 4
SOURCE: Final = "orders"
# The sinks' titles, by their names in `demo.query` and in files.
_OURS: Final = "exactly-once"
_SPARKS: Final = "spark"
_TITLES: Final = {_OURS: "spark-eos", _SPARKS: "Spark's own sink"}
# The first and second kill wait for a batch that begins after this share of the orders.
_KILLS_AFTER: Final = (0.2, 0.55)
# A batch is killed once this share of its orders has visible rows.
_VISIBLE: Final = 0.2
_KILL_ATTEMPTS: Final = 5
# Seconds between two looks at target and checkpoint; short compared with a batch.
_LOOK_SECONDS: Final = 0.005
# The first rows of a batch with counts take longer than this.
_SETTLED_SECONDS: Final = 0.1
# A row's transaction may become visible a moment after it is committed.
_QUIET_SECONDS: Final = 0.3
_PATIENCE: Final = 120.0
# Approximate number of windows for any number of orders: there is one order per second.
_WINDOWS: Final = 55


class DemoError(PrintableError):
    """The demonstration can't continue; the message ends with the query's log, if there is one."""


@dataclass(frozen=True)
class Stage:
    """Where scenarios run: a broker with orders in `SOURCE`, directories, the console."""

    kafka: EmbeddedKafka
    orders: int
    directory: Path
    logs: Path
    console: Console


@dataclass(frozen=True)
class Scenario:
    """The treatment that both sinks get."""

    title: str
    rows: str  # what the target holds; topic and file names begin with it
    expected: str  # label of the expected rows
    batches: int  # number of batches with orders
    why_twice: str  # why Spark's own sink writes rows twice
    copies: bool  # else counts. Copies lose their checkpoint after the second kill


COPIES: Final = Scenario(
    title="Two kills in the middle of a batch, then a deleted checkpoint",
    rows="orders",
    expected="in",
    batches=12,
    why_twice="Without its checkpoint, Spark's own sink does not know what it has written: it "
    "starts again at startingOffsets. With earliest, as here, it writes orders twice; with latest "
    "it loses some. spark-eos continues from the offsets in its transactions.",
    copies=True,
)
COUNTS: Final = Scenario(
    title="Orders by customer and window: two kills in the middle of a batch",
    rows="counts",
    expected="expected",
    batches=5,
    why_twice="Started again with its checkpoint, Spark's own sink writes all counts of the killed "
    "batch, including those already written. spark-eos stages the counts in files, and continues "
    "where its transactions ended.",
    copies=False,
)


def run(scenario: Scenario, stage: Stage) -> bool:
    """Runs both sinks through a scenario; returns True if ours has written exactly once.

    Raises:
        DemoError: A query fails, makes no progress, or is never hit in the middle of a batch.
        SparkEosError: The result can't be compared.
    """
    queries = [_Query(scenario, sink, stage) for sink in _TITLES]
    for query in queries:
        query.run()
    with Step(stage.console, f"Comparing {scenario.rows}"):
        reports = [query.report() for query in queries]
    stage.console.print(table(scenario.title, scenario.rows, scenario.expected, reports))
    stage.console.print(scenario.why_twice)
    return reports[0].exactly_once


class _Query:
    """A sink's query in a scenario, and its target as seen from outside."""

    def __init__(self, scenario: Scenario, sink: str, stage: Stage) -> None:
        self._scenario = scenario
        self._sink = sink
        self._stage = stage
        self._title = _TITLES[sink] if scenario.copies else f"{_TITLES[sink]}, counts"
        self._servers = stage.kafka.bootstrap_servers
        self._target = f"{scenario.rows}-{sink}"
        self._directory = stage.directory / self._target
        self._checkpoint = Checkpoint(self._directory / "checkpoint")
        self._starts = 0
        # Visible rows and finished orders, and the last time that they or the process were new.
        self._seen = (0, 0)
        self._moved = time.monotonic()
        # Number of rows that were visible when a batch was first seen.
        self._visible_before: dict[int, int] = {}
        # What the query leaves at its end, as in `Report`.
        self._left_open = 0
        self._before_loss: int | None = None
        self._lag: int | None = None

    def run(self) -> None:
        """Kills the query twice, lets it finish, and looks at what it leaves."""
        self._directory.mkdir()
        self._stage.kafka.create_topic(self._target, PARTITIONS)
        with (
            closing(TargetReader(self._servers, self._target, PARTITIONS)) as self._reader,
            closing(KafkaAdminClient(bootstrap_servers=self._servers)) as self._admin,
            Step(self._stage.console, f"{self._title}: started", self._stage.orders) as step,
        ):
            first, second = _KILLS_AFTER
            self._run_until_killed(first, step)
            step.rename(f"{self._title}: started again")
            self._run_until_killed(second, step)
            if self._scenario.copies:
                self._before_loss = self._reader.duplicates
                shutil.rmtree(self._checkpoint.directory)
                step.rename(f"{self._title}: checkpoint deleted")
            else:
                step.rename(f"{self._title}: started again, to the end")
            with self._started(last=True) as process:
                while process.exit_status() is None:
                    self._look(process, step)
                self._look(process, step)
            self._reader.read_until_quiet(_QUIET_SECONDS)
            self._show(step)
            self._left_open = self._open_transactions()
            if self._scenario.copies and self._sink == _OURS:
                self._lag = self._group_lag()

    def report(self) -> Report:
        """Compares the target with the expected rows; both queries must have ended."""
        comparison = compare(
            kafka={"bootstrap.servers": self._servers},
            outputs=[self._target],
            expect=f"topic:{SOURCE}" if self._scenario.copies else self._expected,
        )
        return Report(comparison, self._before_loss, self._left_open, self._lag)

    @property
    def _expected(self) -> str:
        """Location of the counts that both sinks should write."""
        return str(self._stage.directory / "expected-counts")

    def _started(self, *, last: bool = False) -> KillableProcess:
        self._starts += 1
        self._moved = time.monotonic()
        orders, copies = self._stage.orders, self._scenario.copies
        arguments = {
            "sink": self._sink,
            "servers": self._servers,
            "source": SOURCE,
            "target": self._target,
            "checkpoint": str(self._checkpoint.directory),
            "batch": max(1, orders // self._scenario.batches),
            "minutes": None if copies else max(1, orders // 60 // _WINDOWS),
            # Written by the process of Spark's own sink, and so independent of spark-eos.
            "expected": self._expected if last and self._sink == _SPARKS else None,
        }
        return KillableProcess(
            python_module("demo.query", json.dumps(arguments)),
            log=self._stage.logs / f"{self._target}-{self._starts}.log",
            directory=self._directory,
            environment={"PYTHONUNBUFFERED": "1"},
        )

    def _run_until_killed(self, share: float, step: Step) -> None:
        for _ in range(_KILL_ATTEMPTS):
            with self._started() as process:
                batch = self._await_middle_of_batch(process, share, step)
                process.kill()
            # Check this only now: the batch may have reached the commit log before the kill.
            if not self._checkpoint.has_finished(batch):
                self._print_kill(batch, step)
                return
        raise DemoError(
            f"{_TITLES[self._sink]}: none of {_KILL_ATTEMPTS} kills hit the middle of a batch; "
            "raise --orders for longer batches"
        )

    def _await_middle_of_batch(
        self, process: KillableProcess, share: float, step: Step
    ) -> RunningBatch:
        """Waits for a batch with visible output that is not in the commit log."""
        while True:
            self._look(process, step)
            batch = self._checkpoint.running()
            if batch is not None:
                enough = self._visible(batch) > _VISIBLE * (batch.end - batch.start)
                if enough and batch.start >= share * self._stage.orders:
                    return batch
            if process.exit_status() is not None:
                raise DemoError(
                    f"{_TITLES[self._sink]}: the query ended before it could be killed in the "
                    "middle of a batch; raise --orders for longer batches"
                )

    def _visible(self, batch: RunningBatch) -> int:
        """Number of the batch's rows that are visible."""
        if self._scenario.copies:
            return len(self._reader.rows) - batch.start
        if batch.number not in self._visible_before:
            # Earlier batches are committed, so all of their rows can be read. Rows of this batch
            # come later, because it must first plan, and group the records that it reads.
            self._reader.read_until_quiet(_SETTLED_SECONDS)
            self._visible_before[batch.number] = len(self._reader.rows)
        return len(self._reader.rows) - self._visible_before[batch.number]

    def _look(self, process: KillableProcess, step: Step) -> None:
        self._reader.read(_LOOK_SECONDS)
        # A batch may have no rows: the first counts are written when a window is closed.
        seen = (self._reader.rows.total(), self._checkpoint.finished_orders())
        if seen != self._seen:
            self._seen, self._moved = seen, time.monotonic()
        self._show(step)
        title, status = _TITLES[self._sink], process.exit_status()
        if status:
            problem = f"{title}: the query failed with exit status {status}"
        elif time.monotonic() > self._moved + _PATIENCE:
            problem = f"{title}: nothing more was written for {_PATIENCE:g} s"
        else:
            return
        raise DemoError(f"{problem}. The end of the query's log:\n{process.log_tail()}")

    def _show(self, step: Step) -> None:
        n = self._reader.duplicates
        visible, (_, finished) = len(self._reader.rows), self._seen
        done = visible if self._scenario.copies else finished
        step.reached(min(done, self._stage.orders), f"{n:,} duplicates" if n else "")

    def _print_kill(self, batch: RunningBatch, step: Step) -> None:
        self._reader.read_until_quiet(_QUIET_SECONDS)
        of_all = f" of {batch.end - batch.start:,}" if self._scenario.copies else ""
        count = self._open_transactions()
        still_open = f", {count} transaction{'s' * (count > 1)} open" if count else ""
        step.print(
            f"  killed in batch {batch.number}, not in the commit log: "
            f"{self._visible(batch):,}{of_all} {self._scenario.rows} visible{still_open}"
        )

    def _open_transactions(self) -> int:
        """Number of open transactions; the broker has no other clients that have any."""
        return sum(map(len, self._admin.list_transactions(state_filters=["Ongoing"]).values()))

    def _group_lag(self) -> int:
        partitions = [TopicPartition(SOURCE, index) for index in range(PARTITIONS)]
        ends = self._admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
        group_id = f"demo-{self._target}"
        committed = self._admin.list_group_offsets({group_id: partitions})[group_id]
        return sum(end.offset - max(0, committed[at].offset) for at, end in ends.items())
