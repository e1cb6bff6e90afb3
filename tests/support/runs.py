"""A query's run without Spark: the driver and its tasks, with rows made up by the test."""

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from spark_eos._batch_report import BatchReport
from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._checks.start import Start
from spark_eos._delivery.base import RunParts
from spark_eos._delivery.direct import DirectDelivery
from spark_eos._exactly_once import task
from spark_eos._exactly_once.batch import Run
from spark_eos._exactly_once.delivery import Batch, PlannedBatch, RunDelivery
from spark_eos._exactly_once.offsets import GroupOffsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.plan import BatchPlan, Partitions
from spark_eos._worker.producer import TransactionalProducer
from spark_eos._worker.task_report import JobOutcome
from spark_eos.errors import OffsetsLostError
from spark_eos.options import ProgressTopic
from support import groups
from support.checkpoint_texts import CheckpointTexts
from support.flow import Flow
from support.manual_members import drop_members
from support.members import writer_settings
from support.queries import until
from support.sinks import changed
from support.writing import close_producers, outcome_of, row_batch

Disturbance = Callable[[], None]


_UNUSED: Final = ProgressTopic("unused")
# Seconds between heartbeats; longer than any test.
_NEVER: Final = 3600.0


def nothing() -> None:
    pass


class Checkpoint(CheckpointTexts):
    """A query's checkpoint, which outlives its runs."""

    def __init__(self, flow: Flow) -> None:
        initial = f"v1\n{positions(flow, (0,) * flow.partitions)}"
        super().__init__({"metadata": '{"id": "query"}', "sources/0/0": initial})

    def begin(self, positions: str, batch_id: int) -> None:
        """Begins a batch as Spark does, unless it was begun before."""
        metadata = json.dumps({"batchTimestampMs": _now_ms()})
        self.setdefault(f"offsets/{batch_id}", f"v1\n{metadata}\n{positions}")

    def finish(self, batch_id: int) -> None:
        """Ends a batch as Spark does."""
        self[f"commits/{batch_id}"] = "v1\n{}"

    @property
    def next_batch(self) -> int:
        return len(self.names("commits"))


def _now_ms() -> int:
    return int(time.time() * 1000)


class _Jobs:
    """Runs jobs without Spark: a batch's frame is the function that writes its rows."""

    def run(
        self, planned: PlannedBatch, batch_plan: BatchPlan, only: Partitions | None
    ) -> JobOutcome:
        outcome: JobOutcome = planned.batch.frame(planned, batch_plan, only)
        return outcome


@dataclass
class Runs:
    """Writes batches of a flow's source; nothing is read from the topic.

    Each row's value is its partition and offset.
    """

    flow: Flow
    run: Run
    checkpoint: Checkpoint
    log: OffsetLog

    @property
    def offsets(self) -> GroupOffsets:
        """The run's knowledge of the group's offsets."""
        return self.run._offsets

    @property
    def coordinator_changed(self) -> bool:
        """True if the run has noticed that the group has changed."""
        return self.run._membership.changed

    @property
    def foreign_member_seen(self) -> bool:
        """True if a heartbeat has found another application's consumer in the group."""
        return self.run._membership._foreign is not None

    @property
    def refused(self) -> bool:
        """True if a heartbeat was refused permanently."""
        return self.run._membership._heartbeats.refused is not None

    def delay_heartbeats(self) -> None:
        """Makes no heartbeat due from now on, so that the run does not notice group changes."""
        membership, heartbeats = self.run._membership, self.run._membership._heartbeats
        # A heartbeat that reports the member's partitions is due at once.
        until(membership._acknowledged, lambda: "heartbeats")
        # The answer to a heartbeat that is under way, or waits for the lock, resets the interval.
        while heartbeats.interval != _NEVER:
            with self.run._membership._lock:
                heartbeats.interval = _NEVER
            time.sleep(0.2)

    def notice_the_group(self) -> None:
        """Sends heartbeats until one shows that the group has changed."""
        self.hurry_heartbeats()
        until(lambda: self.coordinator_changed, lambda: "a heartbeat")

    def hurry_heartbeats(self) -> None:
        """Makes a heartbeat due every tenth of a second, as long as none is answered."""
        self.run._membership._heartbeats.interval = 0.1

    def batch(
        self,
        *ends: int,
        without_output: int = 0,
        while_planned: Disturbance = nothing,
        in_attempt: int = 1,
        rows: Callable[[int, range], Iterable[int]] | None = None,
        also: Mapping[str, tuple[int, ...]] | None = None,
        tasks: Iterable[Iterable[tuple[int, range]]] | None = None,
    ) -> BatchReport:
        """Writes the next batch.

        Args:
            ends: end offsets, by partition.
            without_output: this many of each partition's last rows have no output.
            while_planned: called once the tasks have their plan, before they write.
            in_attempt: the attempt in which ``while_planned`` is called.
            rows: returns the offsets of a partition's rows, each in its own Arrow batch. The
                default is one batch with the whole range.
            also: end offsets of further source topics, by partition.
            tasks: for each task, partitions with the offsets of their rows; by default, a task for
                each partition.
        """
        batch_id = self.checkpoint.next_batch
        self.checkpoint.begin(positions(self.flow, ends, also or {}), batch_id)
        attempts = iter(range(1, 100))

        def job(
            planned: PlannedBatch, batch_plan: BatchPlan, only: Partitions | None
        ) -> JobOutcome:
            if next(attempts) == in_attempt:
                while_planned()
            sources, batch = planned.sources, planned.range
            work = task.write_task(
                planned.settings,
                batch_plan,
                size=planned.size,
                sources=sources,
                discard_producer=only is not None,
            )
            reports = []
            for taken in tasks or ():
                batches = [
                    row_batch(self.flow, p, *offsets)
                    for p, offsets in taken
                    if only is None or (self.flow.source, p) in only
                ]
                reports += list(work(iter(batches)))
            if tasks:
                return outcome_of(reports)
            # One task for each source partition, as in Spark.
            for held in batch.ends if only is None else only:
                topic, partition = sources.source(held)
                start = batch.starts.get(held, 0)
                offsets = range(start, batch.ends[held] - without_output)
                if offsets:
                    parts = [offsets] if rows is None else [[o] for o in rows(partition, offsets)]
                    batches = [
                        row_batch(self.flow, partition, *part, source_topic=topic) for part in parts
                    ]
                    reports += list(work(iter(batches)))
            return outcome_of(reports)

        report = self.run.write(Batch(batch_id, job, self.log))
        self.checkpoint.finish(batch_id)
        return report

    def refuses(
        self,
        error: type[Exception],
        names: Iterable[str],
        *ends: int,
        while_planned: Disturbance = nothing,
        **batch: Any,
    ) -> None:
        """Checks that the next batch writes nothing, and its error contains ``names``."""
        with refused(self.flow, error, names) as note:

            def disturb() -> None:
                while_planned()
                note()

            self.batch(*ends, while_planned=disturb, **batch)

    def producers(self) -> list[TransactionalProducer]:
        return list(task._producers.values())

    def written_once(self, *ends: int) -> None:
        """Checks that each row up to the end offsets is in the output once and committed."""
        written_once(self.flow, *ends)


def values_up_to(*ends: int) -> list[str]:
    """The values of all rows up to the end offsets, sorted as text."""
    return sorted(f"{partition}/{n}" for partition, end in enumerate(ends) for n in range(end))


def written_once(flow: Flow, *ends: int) -> None:
    """Checks that each row up to the end offsets is in the output once and committed."""
    assert sorted(flow.values()) == values_up_to(*ends)
    assert flow.committed() == dict(enumerate(ends))
    assert flow.open_transactions() == []


def positions(
    flow: Flow, offsets: tuple[int, ...], also: Mapping[str, tuple[int, ...]] | None = None
) -> str:
    """Offsets as Spark writes them into a checkpoint, by partition; ``also`` of further topics."""
    ends = {flow.source: offsets, **(also or {})}
    return json.dumps({topic: dict(enumerate(found)) for topic, found in ends.items()})


@contextmanager
def running(
    flow: Flow,
    *,
    checkpoint: Checkpoint | None = None,
    group_timeout_ms: int = 60_000,
    delivery: Callable[[RunParts], RunDelivery] = DirectDelivery,
    progress_topic: ProgressTopic = _UNUSED,
    prepared: bool = True,
    **options: Any,
) -> Iterator[Runs]:
    """A run that ends with the block; with ``prepared``, it knows that its batches are new."""
    files = Checkpoint(flow) if checkpoint is None else checkpoint
    settings = changed(
        writer_settings(flow),
        group_timeout_ms=group_timeout_ms,
        **options,
    )
    start = Start(settings)
    run = Run(
        "",
        start,
        settings,
        lambda offsets: delivery(RunParts(settings, start, offsets, _Jobs(), progress_topic)),
        watch=lambda: True,
        begun_before=max(map(int, files.names("offsets")), default=-1) if prepared else None,
    )
    try:
        yield Runs(flow, run, files, OffsetLog(files))
    finally:
        run.leave()
        close_producers()


@contextmanager
def refused(
    flow: Flow, error: type[Exception], names: Iterable[str] = ()
) -> Iterator[Callable[[], None]]:
    """Expects an error that contains ``names``, and that no row is written and no offset moves.

    Yields a function that records the offsets again, after the test has changed them.
    """

    written = sorted(flow.values())
    before = flow.group_positions()

    def note() -> None:
        nonlocal before
        before = flow.group_positions()

    with pytest.raises(error) as caught:
        yield note
    for name in names:
        assert name in str(caught.value)
    assert sorted(flow.values()) == written
    # Brokers may forget a deleted topic's offsets at any time; a new partition begins at 0.
    after = flow.group_positions()
    assert {p: offset for p, offset in after.items() if offset != before.get(p, 0)} == {}
    assert flow.open_transactions() == []


StartRun = Callable[..., AbstractContextManager[Runs]]

STOPPED: Final = "while stopped"
WITHOUT_CHECKPOINT: Final = "while stopped, and the checkpoint is lost"
BETWEEN: Final = "between batches"
IN_JOB: Final = "in the job"


@dataclass
class Query:
    """A query whose runs each continue from the previous run's checkpoint."""

    flow: Flow
    start: StartRun
    held_by: str  # the topic whose offsets represent the source's
    checkpoint: Checkpoint | None = None
    # End offsets of the batches before a disturbance, and of the batch after it.
    before: tuple[tuple[int, ...], ...] = ((10, 20),)
    after: tuple[int, ...] = (11, 21)
    options: dict[str, Any] = field(default_factory=dict)
    _runs: int = 0
    # Whether members of a continuing run were removed, which its heartbeats will show.
    _dropped: bool = False

    @contextmanager
    def run(self, **options: Any) -> Iterator[Any]:
        """A run that ends with the block."""
        given = {"checkpoint": self.checkpoint, **self.options, **options}
        with self.start(**given) as runs:
            self.checkpoint = runs.checkpoint
            self._runs += 1
            try:
                yield runs
            finally:
                self._runs -= 1

    def writes(self, *ends: int, **batch: Any) -> BatchReport:
        """Writes a batch in a run of its own."""
        with self.run() as runs:
            report: BatchReport = runs.batch(*ends, **batch)
        return report

    def refuses(
        self, error: type[Exception], names: Iterable[str], *ends: int, **batch: Any
    ) -> None:
        """See `Runs.refuses`; in a run of its own."""
        with self.run() as runs:
            runs.refuses(error, names, *ends, **batch)

    def loses(self, *partitions: int, topic: str | None = None) -> None:
        """Deletes offsets, with the same result as if they had expired."""
        self._leave()
        lost = [TopicPartition(topic or self.held_by, partition) for partition in partitions]
        groups.delete_offsets(self.flow.bootstrap_servers, self.flow.group_id, lost)

    def loses_all(self) -> None:
        """Deletes the group."""
        self._leave()
        groups.delete_group(self.flow.bootstrap_servers, self.flow.group_id)

    def sets(self, offsets: Mapping[int, int], text: str = "", topic: str | None = None) -> None:
        """Sets offsets like an operator, by partition, all with one text."""
        self._leave()
        found = {TopicPartition(topic or self.held_by, n): o for n, o in offsets.items()}
        texts = dict.fromkeys(found, text)
        groups.set_offsets(self.flow.bootstrap_servers, self.flow.group_id, found, texts)

    @contextmanager
    def keeping_checkpoint(self) -> Iterator[None]:
        """Restores the current checkpoint at the end of the block."""
        assert self.checkpoint is not None
        backup = dict(self.checkpoint)
        yield
        self.checkpoint.clear()
        self.checkpoint.update(backup)

    def _leave(self) -> None:
        # Brokers refuse changes to the offsets of a group with members.
        if self._runs:
            drop_members(self.flow)
            self._dropped = True
        until(lambda: self.flow.members() == [], lambda: "the members to leave")

    def disturbed(
        self,
        moment: str,
        fault: Callable[["Query"], None],
        error: type[Exception] | None,
        names: Iterable[str] = (),
        **batch: Any,
    ) -> None:
        """Checks that the first batch after a fault is written, or refused, as expected."""
        with self.run() as runs:
            for ends in self.before:
                runs.batch(*ends, **batch)
            if moment in (BETWEEN, IN_JOB):
                assert error
                runs.delay_heartbeats()
                if moment == BETWEEN:
                    fault(self)
                    if self._dropped:
                        runs.notice_the_group()
                planned = functools.partial(fault, self) if moment == IN_JOB else nothing
                runs.refuses(error, names, *self.after, while_planned=planned, **batch)
                return
        if moment == WITHOUT_CHECKPOINT:
            self.checkpoint = None
        fault(self)
        if error:
            self.refuses(error, names, *self.after, **batch)
            return
        with self.run() as runs:
            report = runs.batch(*self.after, **batch)
            runs.written_once(*self.after)
        known = sum(self.before[-1])
        assert report.rows_written == sum(self.after) - known
        assert report.rows_skipped == (known if moment == WITHOUT_CHECKPOINT else 0)


def direct_query(flow: Flow) -> Query:
    """A query that writes rows of the flow's source in its own transactions."""

    return Query(flow, functools.partial(running, flow), flow.source)


def settles_nothing_of_a_recreated_source(flow: Flow, moment: str) -> None:
    """Checks that the driver commits no end offset of the old topic to the new one."""
    query = direct_query(flow)
    words = [f"'{flow.source}'", "recreated"]
    query.disturbed(
        moment, lambda _: flow.recreate(flow.source), OffsetsLostError, words, without_output=10
    )
    assert flow.committed() == {}
