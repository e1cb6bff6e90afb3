"""The plot: a query is killed in the middle of a batch, twice, then loses its checkpoint.

Each sink's query plays the same three acts with the same orders: started and killed; started again
and killed again; its checkpoint deleted, started again and left to finish.
"""

import shutil
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from spark_eos.client.settings import ClientSettings
from spark_eos.demo.checkpoint import Checkpoint, RunningBatch
from spark_eos.demo.process import KillableProcess
from spark_eos.demo.stage import Stage
from spark_eos.demo.target import TargetReader
from spark_eos.demo.verdict import Tally, tally
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline
from spark_eos.kafka.open_transactions import open_transactions
from spark_eos.testing import EmbeddedKafka
from spark_eos.testing.partition_ends import end_offsets

PARTITIONS: Final = 4
SOURCE: Final = "orders"
_BATCHES: Final = 12
# The first two acts kill no batch that begins before this share of the orders.
_KILLS_AFTER: Final = (0.2, 0.55)
# A batch is killed once this share of it is visible.
_VISIBLE: Final = 0.2
_KILL_ATTEMPTS: Final = 5
# Interval of looking at target and checkpoint; short compared with a batch.
_LOOK_SECONDS: Final = 0.005
_PATIENCE: Final = 120.0
_TIMEOUT: Final = 15.0


class DemoError(Exception):
    """The demonstration can't continue; the message ends with the query's log, if there is one."""


@dataclass(frozen=True)
class Contender:
    """A sink in the play.

    Attributes:
        sink: Its name in `spark_eos.demo.query`, and in the names of topics and files.
        title: Its name on the terminal.
        has_group: Whether its query commits offsets of a consumer group.
    """

    sink: str
    title: str
    has_group: bool


EXACTLY_ONCE: Final = Contender("exactly-once", "spark-eos", has_group=True)
SPARKS_OWN: Final = Contender("spark", "Spark's own sink", has_group=False)


@dataclass(frozen=True)
class Outcome:
    """The result of a contender.

    Attributes:
        tally: The counts of its target topic.
        before_loss: Number of duplicates before the checkpoint was deleted.
    """

    tally: Tally
    before_loss: int


class Play:
    """One contender's play.

    Args:
        contender: The contender.
        kafka: A running broker that has the orders in `SOURCE`.
        orders: Number of orders.
        directory: Directory for the checkpoint and temporary files.
        logs: Directory for the query's logs.
        stage: Shows the play on the terminal.
    """

    def __init__(
        self,
        contender: Contender,
        *,
        kafka: EmbeddedKafka,
        orders: int,
        directory: Path,
        logs: Path,
        stage: Stage,
    ) -> None:
        self._contender = contender
        self._servers = kafka.bootstrap_servers
        self._orders = orders
        self._target = f"orders-{contender.sink}"
        self._group_id = f"demo-{contender.sink}"
        self._directory = directory / contender.sink
        self._directory.mkdir()
        self._checkpoint_location = self._directory / "checkpoint"
        self._checkpoint = Checkpoint(self._checkpoint_location)
        self._logs = logs
        self._starts = 0
        self._stage = stage
        kafka.create_topic(self._target, PARTITIONS)

    def run(self) -> Outcome:
        """Plays all acts and counts the result.

        Raises:
            DemoError: The query fails or makes no progress.
            LingeringTransactionError: A transaction is still open after the end.
        """
        title = self._contender.title
        with (
            TargetReader(self._servers, self._target, PARTITIONS) as reader,
            closing(Wire(ClientSettings({"bootstrap.servers": self._servers}))) as wire,
        ):
            with self._stage.scene(f"{title}: started", self._orders):
                self._act_with_kill(reader, wire, _KILLS_AFTER[0])
                self._stage.retitle(f"{title}: started again")
                self._act_with_kill(reader, wire, _KILLS_AFTER[1])
                before_loss = _duplicates(reader)
                shutil.rmtree(self._checkpoint_location)
                self._stage.retitle(f"{title}: checkpoint deleted")
                self._last_act(reader)
            return Outcome(
                tally(
                    self._orders,
                    reader.counts,
                    # All open transactions: the broker has no other clients.
                    open_transactions=len(self._open_transactions(wire)),
                    group_lag=self._group_lag() if self._contender.has_group else None,
                ),
                before_loss,
            )

    def _start_query(self) -> KillableProcess:
        self._starts += 1
        options = {
            "--sink": self._contender.sink,
            "--bootstrap-servers": self._servers,
            "--group-id": self._group_id,
            "--source": SOURCE,
            "--target": self._target,
            "--checkpoint-location": str(self._checkpoint_location),
            "--max-offsets-per-trigger": str(max(1, self._orders // _BATCHES)),
        }
        flat = [text for option in options.items() for text in option]
        return KillableProcess(
            [sys.executable, "-m", "spark_eos.demo.query", "--available-now", *flat],
            log=self._logs / f"{self._contender.sink}-{self._starts}.log",
            directory=self._directory,
            environment={"PYTHONUNBUFFERED": "1"},
        )

    # Acts -------------------------------------------------------------------------------------

    def _act_with_kill(self, reader: TargetReader, wire: Wire, share: float) -> None:
        for _ in range(_KILL_ATTEMPTS):
            with self._start_query() as query:
                batch = self._await_middle_of_batch(query, reader, share)
                query.kill()
            # Only certain now: the batch may have reached the commit log before the kill.
            if not self._checkpoint.is_committed(batch):
                self._tell_of_kill(batch, reader, self._open_transactions(wire))
                return
        raise DemoError(
            f"{self._contender.title}: none of {_KILL_ATTEMPTS} kills hit the middle of a batch; "
            "raise --orders for longer batches"
        )

    def _await_middle_of_batch(
        self, query: KillableProcess, reader: TargetReader, share: float
    ) -> RunningBatch:
        """Waits for a batch with visible output that is not in the commit log."""
        patience = _Patience(self._contender)
        while True:
            self._look(query, reader, patience)
            batch = self._checkpoint.running_batch()
            if batch is not None and batch.start >= share * self._orders:
                # Earlier batches have `start` orders, so all further ones are of this batch.
                visible = len(reader.counts) - batch.start
                if visible > _VISIBLE * (batch.end - batch.start):
                    return batch
            if query.exit_status() is not None:
                raise DemoError(
                    f"{self._contender.title}: the query ended before it could be killed in the "
                    "middle of a batch; raise --orders for longer batches"
                )

    def _last_act(self, reader: TargetReader) -> None:
        patience = _Patience(self._contender)
        with self._start_query() as query:
            while query.exit_status() is None:
                self._look(query, reader, patience)
            self._look(query, reader, patience)
        reader.read_all()
        self._show(reader)

    def _look(self, query: KillableProcess, reader: TargetReader, patience: "_Patience") -> None:
        reader.read(_LOOK_SECONDS)
        self._show(reader)
        if query.exit_status():
            raise DemoError(
                f"{self._contender.title}: the query failed with exit status "
                f"{query.exit_status()}. The end of its log:\n{query.log_tail()}"
            )
        patience.check(reader.counts.total(), query)

    def _show(self, reader: TargetReader) -> None:
        duplicates = _duplicates(reader)
        remark = f"{duplicates:,} duplicates" if duplicates else ""
        self._stage.reached(len(reader.counts), remark)

    def _tell_of_kill(
        self, batch: RunningBatch, reader: TargetReader, transactions: list[str]
    ) -> None:
        # Read what had arrived before the kill.
        before = -1
        while before != (before := reader.counts.total()):
            reader.read(0.3)
        visible = len(reader.counts) - batch.start
        count = len(transactions)
        still_open = f", {count} transaction{'s' * (count > 1)} open" if count else ""
        self._stage.note(
            f"killed in batch {batch.batch_id}, not in the commit log: {visible:,} of "
            f"{batch.end - batch.start:,} orders visible{still_open}"
        )

    # Afterwards -------------------------------------------------------------------------------

    def _open_transactions(self, wire: Wire) -> list[str]:
        return open_transactions(wire, ".*", Deadline(_TIMEOUT, "demo"))

    def _group_lag(self) -> int:
        """Returns the lag as a client other than the committing one sees it."""
        admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 0})
        partitions = [TopicPartition(SOURCE, index) for index in range(PARTITIONS)]
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": self._group_id})
        with closing(consumer):
            found = consumer.committed(partitions, timeout=_TIMEOUT)
        ends = end_offsets(admin, SOURCE, range(PARTITIONS))
        return sum(ends.values()) - sum(max(0, p.offset) for p in found)


class _Patience:
    """Gives up when no order has arrived for `_PATIENCE` seconds."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._count = -1
        self._since = time.monotonic()

    def check(self, count: int, query: KillableProcess) -> None:
        if count != self._count:
            self._count, self._since = count, time.monotonic()
        elif time.monotonic() - self._since > _PATIENCE:
            raise DemoError(
                f"{self._contender.title}: no more orders for {_PATIENCE:g} s. The end of the "
                f"query's log:\n{query.log_tail()}"
            )


def _duplicates(reader: TargetReader) -> int:
    return reader.counts.total() - len(reader.counts)
