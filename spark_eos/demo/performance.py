"""A contender's query in one act: started, killed in the middle of a batch, left to finish."""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from spark_eos.client.settings import ClientSettings
from spark_eos.demo.checkpoint import Checkpoint, RunningBatch
from spark_eos.demo.process import KillableProcess
from spark_eos.demo.target import Identity, TargetReader, order_of
from spark_eos.demo.theatre import PARTITIONS, SOURCE, Contender, DemoError, Theatre
from spark_eos.host.python_module import python_module
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline
from spark_eos.kafka.open_transactions import open_transactions

# No batch is killed that begins before this share of the orders: first and second kill.
KILLS_AFTER: Final = (0.2, 0.55)
# A batch is killed once rows of this share of its orders are visible.
_VISIBLE: Final = 0.2
_KILL_ATTEMPTS: Final = 5
# Interval of looking at target and checkpoint; short compared with a batch.
_LOOK_SECONDS: Final = 0.005
_PATIENCE: Final = 120.0
_TIMEOUT: Final = 15.0


@dataclass(frozen=True)
class Script:
    """What both contenders play in an act.

    Attributes:
        name: The first part of the names of targets, groups and checkpoints.
        unit: What the target holds, for people.
        batches: Number of batches with orders.
        options: Further options of `spark_eos.demo.query`.
        identity: What is the same in a row and its duplicate.
        row_per_order: Whether each order makes one row, in its own batch.
    """

    name: str
    unit: str
    batches: int
    options: Sequence[str] = ()
    identity: Identity = order_of
    row_per_order: bool = False


class Performance:
    """One contender's query.

    A context manager: leaving closes the connections.

    Args:
        script: What is played.
        contender: The contender.
        theatre: Where it is played.

    Attributes:
        title: The contender's name on the terminal.
        target: The query's target topic.
        group_id: The query's consumer group.
        checkpoint_location: The query's checkpoint.
        reader: Counts the target's rows.
    """

    def __init__(self, script: Script, contender: Contender, theatre: Theatre) -> None:
        self.title = contender.title
        self.target = f"{script.name}-{contender.sink}"
        self.group_id = f"demo-{self.target}"
        self._script = script
        self._sink = contender.sink
        self._theatre = theatre
        self._servers = theatre.kafka.bootstrap_servers
        self._directory = theatre.directory / self.target
        self._directory.mkdir()
        self.checkpoint_location = self._directory / "checkpoint"
        self._checkpoint = Checkpoint(self.checkpoint_location)
        self._starts = 0
        # How many rows were visible when a batch was first seen.
        self._visible_before: dict[int, int] = {}
        theatre.kafka.create_topic(self.target, PARTITIONS)
        self.reader = TargetReader(self._servers, self.target, PARTITIONS, script.identity)
        self._wire = Wire(ClientSettings({"bootstrap.servers": self._servers}))

    def __enter__(self) -> "Performance":
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the connections."""
        with closing(self._wire):
            self.reader.close()

    def play_until_killed(self, share: float) -> None:
        """Starts the query and kills it in the middle of a batch.

        Args:
            share: No batch is killed that begins before this share of the orders.

        Raises:
            DemoError: The query fails, makes no progress, or is never hit.
        """
        for _ in range(_KILL_ATTEMPTS):
            with self._start_query() as query:
                batch = self._await_middle_of_batch(query, share)
                query.kill()
            # Only certain now: the batch may have reached the commit log before the kill.
            if not self._checkpoint.is_committed(batch):
                self._tell_of_kill(batch)
                return
        raise DemoError(
            f"{self.title}: none of {_KILL_ATTEMPTS} kills hit the middle of a batch; "
            "raise --orders for longer batches"
        )

    def play_to_the_end(self, *options: str) -> None:
        """Starts the query, waits until it ends, and reads all of its target.

        Args:
            options: Further options of the query.

        Raises:
            DemoError: The query fails or makes no progress.
            LingeringTransactionError: A transaction is still open after the end.
        """
        patience = _Patience(self.title)
        with self._start_query(*options) as query:
            while query.exit_status() is None:
                self._look(query, patience)
            self._look(query, patience)
        self.reader.read_all()
        self._show()

    def open_transactions(self) -> list[str]:
        """The open transactions of all queries: the broker has no other clients."""
        return open_transactions(self._wire, ".*", Deadline(_TIMEOUT, "demo"))

    def _start_query(self, *more: str) -> KillableProcess:
        self._starts += 1
        options = {
            "--sink": self._sink,
            "--bootstrap-servers": self._servers,
            "--group-id": self.group_id,
            "--source": SOURCE,
            "--target": self.target,
            "--checkpoint-location": str(self.checkpoint_location),
            "--max-offsets-per-trigger": str(max(1, self._theatre.orders // self._script.batches)),
        }
        flat = [text for option in options.items() for text in option]
        return KillableProcess(
            python_module(
                "spark_eos.demo.query", "--available-now", *flat, *self._script.options, *more
            ),
            log=self._theatre.logs / f"{self.target}-{self._starts}.log",
            directory=self._directory,
            environment={"PYTHONUNBUFFERED": "1"},
        )

    def _await_middle_of_batch(self, query: KillableProcess, share: float) -> RunningBatch:
        """Waits for a batch with visible output that is not in the commit log."""
        patience = _Patience(self.title)
        while True:
            self._look(query, patience)
            batch = self._checkpoint.running_batch()
            if batch is not None:
                visible = self._visible(batch)
                enough = visible > _VISIBLE * (batch.end - batch.start)
                if enough and batch.start >= share * self._theatre.orders:
                    return batch
            if query.exit_status() is not None:
                raise DemoError(
                    f"{self.title}: the query ended before it could be killed in the middle of a "
                    "batch; raise --orders for longer batches"
                )

    def _visible(self, batch: RunningBatch) -> int:
        """Number of the batch's rows that are visible."""
        if self._script.row_per_order:
            return len(self.reader.counts) - batch.start
        if batch.batch_id not in self._visible_before:
            # The batches before it are committed, so all of their rows are there to be read.
            self._read_what_is_there(_LOOK_SECONDS)
            self._visible_before[batch.batch_id] = len(self.reader.counts)
        return len(self.reader.counts) - self._visible_before[batch.batch_id]

    def _read_what_is_there(self, timeout: float) -> None:
        before = -1
        while before != (before := self.reader.counts.total()):
            self.reader.read(timeout)

    def _look(self, query: KillableProcess, patience: "_Patience") -> None:
        self.reader.read(_LOOK_SECONDS)
        self._show()
        if query.exit_status():
            raise DemoError(
                f"{self.title}: the query failed with exit status {query.exit_status()}. The end "
                f"of its log:\n{query.log_tail()}"
            )
        patience.check(self.reader.counts.total(), query)

    def _show(self) -> None:
        reader, orders = self.reader, self._theatre.orders
        duplicates = reader.duplicates
        remark = f"{duplicates:,} duplicates" if duplicates else ""
        done = len(reader.counts) if self._script.row_per_order else self._checkpoint.finished()
        self._theatre.stage.reached(min(done, orders), remark)

    def _tell_of_kill(self, batch: RunningBatch) -> None:
        self._read_what_is_there(0.3)
        count, orders = len(self.open_transactions()), batch.end - batch.start
        unit = self._script.unit
        of_all = f"of {orders:,} {unit}" if self._script.row_per_order else f"{unit}"
        still_open = f", {count} transaction{'s' * (count > 1)} open" if count else ""
        self._theatre.stage.note(
            f"killed in batch {batch.batch_id}, not in the commit log: {self._visible(batch):,} "
            f"{of_all} visible{still_open}"
        )


class _Patience:
    """Gives up when no row has arrived for `_PATIENCE` seconds."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._count = -1
        self._since = time.monotonic()

    def check(self, count: int, query: KillableProcess) -> None:
        if count != self._count:
            self._count, self._since = count, time.monotonic()
        elif time.monotonic() - self._since > _PATIENCE:
            raise DemoError(
                f"{self._title}: nothing more was written for {_PATIENCE:g} s. The end of the "
                f"query's log:\n{query.log_tail()}"
            )
