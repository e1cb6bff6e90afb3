"""Runs of a query without Spark: what a batch read is told by the test."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from spark_eos.checkpoint import OffsetLog
from spark_eos.plan import BatchPlan, BatchRange
from spark_eos.report import JobOutcome
from spark_eos.run import Partitions, QueryRun
from spark_eos.settings import WriterSettings
from support.flow import Flow
from support.members import writer_settings


class _Offsets:
    """A checkpoint whose batch N ends at N + 1 times 10 in both partitions of the source."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def names(self, _directory: str) -> list[str]:
        return ["0"]

    def read(self, path: str) -> str:
        end = 0 if path.startswith("sources") else 10 * (int(path.rpartition("/")[2]) + 1)
        positions = {self._flow.source: {str(p): end for p in range(self._flow.partitions)}}
        return "\n".join(["v1", *([] if not end else ["{}"]), json.dumps(positions)])


@contextmanager
def running(flow: Flow, **options: Any) -> Iterator[QueryRun]:
    """A run of the flow's query; its batches have ten offsets in each partition."""
    with flow.wire() as wire:
        run = QueryRun(
            "run",
            wire,
            replace(writer_settings(flow), **options),
            OffsetLog(_Offsets(flow)),
            most_members=1,
            most_rounds=4,
            group_timeout=20,
            watch=lambda: True,
        )
        try:
            yield run
        finally:
            run.leave()


def without_rows(then: Callable[[], object]) -> Any:
    """A job all of whose rows were filtered out; something happens while it runs."""

    def job(
        _settings: WriterSettings, _batch: BatchRange, _plan: BatchPlan, _only: Partitions | None
    ) -> JobOutcome:
        then()
        return JobOutcome()

    return job
