"""A keeper without Spark: its driver is a process of the test, its rows are made up."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from spark_eos.batch.batch_report import BatchReport
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.datasource import keeper_client
from spark_eos.datasource.keeper_client import KeeperClient
from spark_eos.datasource.keeper_messages import Commit, Plan, Planned
from spark_eos.host.driver_process import HostProcess, _look_up
from spark_eos.worker.task import write_task
from support.data_sources import end_keepers
from support.flow import Flow
from support.members import writer_settings
from support.runs import close_producers, positions
from support.writing import outcome_of, row_batch


@dataclass
class Keeping:
    """Batches of a flow's source, planned and committed as Spark does it.

    Attributes:
        flow: topics, group and checkpoint.
        idle_seconds: how long a keeper waits for another batch.
        settings: fields of the writer's settings that differ.
        answer_within: seconds that a keeper may take for an answer.
    """

    flow: Flow
    driver: "subprocess.Popen[bytes]"
    idle_seconds: float = 60
    settings: dict[str, Any] = field(default_factory=dict)
    answer_within: float = 120

    @property
    def client(self) -> KeeperClient:
        """A client as one of Spark's processes makes it."""
        return KeeperClient(self.flow.group_id, self.flow.checkpoint, self.answer_within)

    def begin(self, batch_id: int, *ends: int) -> None:
        """Writes what Spark writes before a batch is planned."""
        checkpoint = Path(self.flow.checkpoint)
        for name, text in (
            ("metadata", f'{{"id":"query-{self.flow.name}"}}'),
            ("sources/0/0", f"v1\n{positions(self.flow, (0,) * self.flow.partitions)}"),
            (f"offsets/{batch_id}", f"v1\n{{}}\n{positions(self.flow, ends)}"),
        ):
            file = checkpoint / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    @property
    def writer_settings(self) -> WriterSettings:
        """Of the query, with the fields that differ."""
        return replace(writer_settings(self.flow), **self.settings)

    @property
    def request(self) -> Plan:
        """Asks for the plan of the batch begun last."""
        return Plan(self.writer_settings, self.flow.checkpoint, 64, 20_000)

    def plan(self) -> Planned:
        """The plan of the batch begun last."""
        return self.client.plan(self.request, self.idle_seconds)

    def written(self, planned: Planned, *ends: int) -> Commit:
        """Writes the batch's rows up to the ends in one task for each partition."""
        work = write_task(self.writer_settings, planned.plan)
        starts = [planned.plan[self.flow.source, p].start for p in range(len(ends))]
        reports = [
            report
            for partition, (start, end) in enumerate(zip(starts, ends, strict=True))
            if start < end
            for report in work(iter([row_batch(self.flow, partition, *range(start, end))]))
        ]
        outcome = outcome_of(reports)
        return Commit(planned.batch_id, "run", outcome)

    def batch(self, batch_id: int, *ends: int) -> BatchReport:
        """A whole batch."""
        self.begin(batch_id, *ends)
        return self.client.commit(self.written(self.plan(), *ends))


@contextmanager
def keeping(flow: Flow, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[Keeping]:
    """A driver's process, and an end to its keeper."""
    with subprocess.Popen([shutil.which("sleep") or "", "600"]) as driver:
        found = _look_up(driver.pid)
        assert found is not None
        process = HostProcess(driver.pid, found.started)
        monkeypatch.setattr(keeper_client, "spark_driver", lambda: process)
        try:
            yield Keeping(flow, driver, **options)
        finally:
            # Without it their keepers end too, should they not do as they are told.
            driver.kill()
            close_producers()
            end_keepers(flow)


def kill(pids: list[int]) -> None:
    """SIGKILL."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
