"""The two scenarios. In both, each candidate's query is killed in the middle of a batch, twice.

In the first one it copies orders, and loses its checkpoint before it is left to finish. In the
second one it counts them by customer and window.
"""

import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import OffsetSpec

from spark_eos._demo.checkpoint import RunningBatch, finished_orders, is_finished, running_batch
from spark_eos._demo.display import Display, Step
from spark_eos._demo.process import KillableProcess
from spark_eos._demo.report import Finished, Report, table
from spark_eos._demo.target import TargetReader
from spark_eos._host.python_module import python_module
from spark_eos.errors import PrintableError
from spark_eos.testing import EmbeddedKafka
from spark_eos.verify import compare

PARTITIONS: Final = 4
SOURCE: Final = "orders"
# No batch is killed that begins before this share of the orders: first and second kill.
_KILLS_AFTER: Final = (0.2, 0.55)
# A batch is killed once rows of this share of its orders are visible.
_VISIBLE: Final = 0.2
_KILL_ATTEMPTS: Final = 5
# Interval of looking at target and checkpoint; short compared with a batch.
_LOOK_SECONDS: Final = 0.005
# A row's transaction may become visible a moment after it is committed.
_QUIET_SECONDS: Final = 0.3
_PATIENCE: Final = 120.0
# About as many windows as this, whatever the number of orders: an order is placed each second.
_WINDOWS: Final = 55


class DemoError(PrintableError):
    """The demonstration can't continue; the message ends with the query's log, if there is one."""


@dataclass(frozen=True)
class Environment:
    """Where scenarios run: a broker with the orders in `SOURCE`, directories, and the display."""

    kafka: EmbeddedKafka
    orders: int
    directory: Path
    logs: Path
    display: Display


@dataclass(frozen=True)
class Candidate:
    """A sink: its name in `spark_eos._demo.query` and in files, and its name for people."""

    sink: str
    title: str


OURS: Final = Candidate("exactly-once", "spark-eos")
SPARKS: Final = Candidate("spark", "Spark's own sink")


@dataclass(frozen=True)
class Scenario:
    """What happens to both candidates alike.

    Attributes:
        title: What stands above the reports.
        rows: What the target holds; also the first part of names of topics and files.
        expected: What rows are called that should be there.
        batches: Number of batches with orders.
        expect: The rows that are expected, as `spark_eos.verify.compare` takes them.
        why_twice: Why Spark's own sink writes rows twice.
        relays: Whether orders are copied, each in its own batch. Then the checkpoint is deleted
            after the second kill, and the group's lag must be 0 at the end.
        options: Further options of `spark_eos._demo.query`.
        last_options: Those of the last start of Spark's own sink: no row of ours comes of them.
    """

    title: str
    rows: str
    expected: str
    batches: int
    expect: str
    why_twice: str
    relays: bool = False
    options: Sequence[str] = ()
    last_options: Sequence[str] = ()


RELAY: Final = Scenario(
    title="Two kills in the middle of a batch, then a deleted checkpoint",
    rows="orders",
    expected="in",
    batches=12,
    expect=f"topic:{SOURCE}",
    why_twice="Without its checkpoint, Spark's own sink does not know what it has written: it "
    "starts again at startingOffsets. With earliest, as here, it writes orders twice; with latest "
    "it loses some. spark-eos continues from the offsets in its transactions.",
    relays=True,
)
COUNTED: Final = "Orders by customer and window: two kills in the middle of a batch"


def counts(environment: Environment) -> Scenario:
    """Orders are counted by customer and window; a batch query tells what is expected."""
    expected = str(environment.directory / "expected-counts")
    minutes = max(1, environment.orders // 60 // _WINDOWS)
    return Scenario(
        title=COUNTED,
        rows="counts",
        expected="expected",
        batches=5,
        expect=expected,
        why_twice="Started again with its checkpoint, Spark's own sink writes the killed batch's "
        "counts from the first to the last, those too that are there. spark-eos has staged them in "
        "files, and continues where its transactions have ended.",
        options=("--count-minutes", str(minutes)),
        last_options=("--expected", expected),
    )


def run(scenario: Scenario, environment: Environment) -> bool:
    """Runs both candidates through a scenario; returns whether ours has written exactly once.

    Raises:
        DemoError: A query fails, makes no progress, or is never hit in the middle of a batch.
        SparkEosError: The result can't be compared.
    """
    finished = []
    for candidate in (OURS, SPARKS):
        with _Query(scenario, candidate, environment) as query:
            finished.append(query.run())
    with environment.display.step(f"Comparing {scenario.rows}"):
        servers = {"bootstrap.servers": environment.kafka.bootstrap_servers}
        reports = [
            Report(one, compare(kafka=servers, outputs=[one.target], expect=scenario.expect))
            for one in finished
        ]
    console = environment.display.console
    console.print(table(scenario.title, scenario.rows, scenario.expected, reports))
    console.print(scenario.why_twice)
    return reports[0].exactly_once


class _Query:
    """A candidate's query in a scenario, and its target as seen from outside."""

    def __init__(self, scenario: Scenario, candidate: Candidate, environment: Environment) -> None:
        self._scenario = scenario
        self._candidate = candidate
        self._environment = environment
        self._target = f"{scenario.rows}-{candidate.sink}"
        self._group_id = f"demo-{self._target}"
        self._directory = environment.directory / self._target
        self._checkpoint = self._directory / "checkpoint"
        self._starts = 0
        # Visible rows and finished orders, and when they or the process were new.
        self._seen = (0, 0)
        self._moved = time.monotonic()
        # How many rows were visible when a batch was first seen.
        self._visible_before: dict[int, int] = {}

    def __enter__(self) -> "_Query":
        kafka = self._environment.kafka
        self._directory.mkdir()
        kafka.create_topic(self._target, PARTITIONS)
        with ExitStack() as stack:
            reader = TargetReader(kafka.bootstrap_servers, self._target, PARTITIONS)
            self._reader = stack.enter_context(closing(reader))
            admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
            self._admin = stack.enter_context(closing(admin))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self) -> Finished:
        """Kills the query twice, lets it finish, and looks at what it leaves."""
        relays = self._scenario.relays
        title = self._candidate.title if relays else f"{self._candidate.title}, counts"
        display = self._environment.display
        before_loss = None
        with display.step(f"{title}: started", self._environment.orders) as step:
            self._run_until_killed(_KILLS_AFTER[0], step)
            step.rename(f"{title}: started again")
            self._run_until_killed(_KILLS_AFTER[1], step)
            if relays:
                before_loss = self._reader.duplicates
                shutil.rmtree(self._checkpoint)
                step.rename(f"{title}: checkpoint deleted")
            else:
                step.rename(f"{title}: started again, to the end")
            self._run_to_the_end(step)
        lag = self._group_lag() if relays and self._candidate is OURS else None
        return Finished(self._target, before_loss, self._open_transactions(), lag)

    def _run_until_killed(self, share: float, step: Step) -> None:
        for _ in range(_KILL_ATTEMPTS):
            with self._started() as process:
                batch = self._await_middle_of_batch(process, share, step)
                process.kill()
            # Only certain now: the batch may have reached the commit log before the kill.
            if not is_finished(self._checkpoint, batch):
                self._print_kill(batch, step)
                return
        raise DemoError(
            f"{self._candidate.title}: none of {_KILL_ATTEMPTS} kills hit the middle of a batch; "
            "raise --orders for longer batches"
        )

    def _run_to_the_end(self, step: Step) -> None:
        options = self._scenario.last_options if self._candidate is SPARKS else ()
        with self._started(*options) as process:
            while process.exit_status() is None:
                self._look(process, step)
            self._look(process, step)
        self._reader.read_until_quiet(_QUIET_SECONDS)
        self._show(step)

    def _started(self, *more: str) -> KillableProcess:
        self._starts += 1
        self._moved = time.monotonic()
        batch = max(1, self._environment.orders // self._scenario.batches)
        options = {
            "--sink": self._candidate.sink,
            "--bootstrap-servers": self._environment.kafka.bootstrap_servers,
            "--group-id": self._group_id,
            "--source": SOURCE,
            "--target": self._target,
            "--checkpoint-location": str(self._checkpoint),
            "--max-offsets-per-trigger": str(batch),
        }
        given = [text for option in options.items() for text in option]
        arguments = ("--available-now", *given, *self._scenario.options, *more)
        return KillableProcess(
            python_module("spark_eos._demo.query", *arguments),
            log=self._environment.logs / f"{self._target}-{self._starts}.log",
            directory=self._directory,
            environment={"PYTHONUNBUFFERED": "1"},
        )

    def _await_middle_of_batch(
        self, process: KillableProcess, share: float, step: Step
    ) -> RunningBatch:
        """Waits for a batch with visible output that is not in the commit log."""
        while True:
            self._look(process, step)
            batch = running_batch(self._checkpoint)
            if batch is not None:
                enough = self._visible(batch) > _VISIBLE * (batch.end - batch.start)
                if enough and batch.start >= share * self._environment.orders:
                    return batch
            if process.exit_status() is not None:
                raise DemoError(
                    f"{self._candidate.title}: the query ended before it could be killed in the "
                    "middle of a batch; raise --orders for longer batches"
                )

    def _visible(self, batch: RunningBatch) -> int:
        """Number of the batch's rows that are visible."""
        if self._scenario.relays:
            return len(self._reader.rows) - batch.start
        if batch.batch_id not in self._visible_before:
            # The batches before it are committed, so all of their rows are there to be read.
            self._reader.read_until_quiet(_LOOK_SECONDS)
            self._visible_before[batch.batch_id] = len(self._reader.rows)
        return len(self._reader.rows) - self._visible_before[batch.batch_id]

    def _look(self, process: KillableProcess, step: Step) -> None:
        self._reader.read(_LOOK_SECONDS)
        # A batch may have no rows: the first counts are written when a window is closed.
        seen = (self._reader.rows.total(), finished_orders(self._checkpoint))
        if seen != self._seen:
            self._seen, self._moved = seen, time.monotonic()
        self._show(step)
        title, status = self._candidate.title, process.exit_status()
        if status:
            problem = f"{title}: the query failed with exit status {status}"
        elif time.monotonic() > self._moved + _PATIENCE:
            problem = f"{title}: nothing more was written for {_PATIENCE:g} s"
        else:
            return
        raise DemoError(f"{problem}. The end of the query's log:\n{process.log_tail()}")

    def _show(self, step: Step) -> None:
        reader, orders = self._reader, self._environment.orders
        relays = self._scenario.relays
        done = len(reader.rows) if relays else finished_orders(self._checkpoint)
        step.reached(min(done, orders), f"{n:,} duplicates" if (n := reader.duplicates) else "")

    def _print_kill(self, batch: RunningBatch, step: Step) -> None:
        self._reader.read_until_quiet(_QUIET_SECONDS)
        of_all = f" of {batch.end - batch.start:,}" if self._scenario.relays else ""
        count = self._open_transactions()
        still_open = f", {count} transaction{'s' * (count > 1)} open" if count else ""
        step.print(
            f"  killed in batch {batch.batch_id}, not in the commit log: "
            f"{self._visible(batch):,}{of_all} {self._scenario.rows} visible{still_open}"
        )

    def _open_transactions(self) -> int:
        """Number of open transactions; the broker has no other clients that have any."""
        return sum(map(len, self._admin.list_transactions(state_filters=["Ongoing"]).values()))

    def _group_lag(self) -> int:
        partitions = [TopicPartition(SOURCE, index) for index in range(PARTITIONS)]
        ends = self._admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
        committed = self._admin.list_group_offsets({self._group_id: partitions})[self._group_id]
        return sum(end.offset - max(0, committed[at].offset) for at, end in ends.items())
