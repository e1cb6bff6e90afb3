"""Queries for tests: in this process's session, or in their own processes that can be killed."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos.testing import process_available
from support.flow import Flow
from support.killable_process import SessionGuard
from support.sinks import arguments, flat

Transform = Callable[[DataFrame], DataFrame]
Function = Callable[[ExactlyOnceSink, DataFrame, int], None]


def relay(frame: DataFrame) -> DataFrame:
    return frame.select("source", "key", "value")


def run_available(
    spark: SparkSession,
    flow: Flow,
    transform: Transform = relay,
    *,
    read: dict[str, Any] | None = None,
    on_batch: Callable[[BatchReport], object] | None = None,
    function: Function | None = None,
    **options: Any,
) -> list[BatchReport]:
    """Runs a query over everything available; returns its batches' reports.

    ``function`` is a user's ``foreachBatch`` function, which also gets the sink.
    """
    reports: list[BatchReport] = []

    def note(report: BatchReport) -> None:
        reports.append(report)
        if on_batch is not None:
            on_batch(report)

    sink = ExactlyOnceSink(**arguments(**{**flow.options(), **options}, on_batch=note))
    frame = sink.read(spark, **{"subscribe": flow.source, **(read or {})})
    try:
        writer = sink.write(transform(frame))
        if function is not None:
            writer = writer.foreachBatch(lambda rows, number: function(sink, rows, number))
        process_available(writer, timeout=240)
    finally:
        sink.close()
    return reports


@contextlib.contextmanager
def running(
    spark: SparkSession,
    flow: Flow,
    transform: Transform = relay,
    *,
    read: dict[str, Any] | None = None,
    started_with: dict[str, str] | None = None,
    function: Function | None = None,
    **options: Any,
) -> Iterator[StreamingQuery]:
    """A query that runs until the block ends."""
    with closing(ExactlyOnceSink(**arguments(**{**flow.options(), **options}))) as sink:
        frame = sink.read(spark, **{"subscribe": flow.source, **(read or {})})
        writer = sink.write(transform(frame)).options(**(started_with or {}))
        if function is not None:
            writer = writer.foreachBatch(lambda rows, number: function(sink, rows, number))
        query = writer.start()
        try:
            yield query
        finally:
            query.stop()


def run_sparks_sink(
    spark: SparkSession, servers: str, source: str, target: str, checkpoint: str, **options: str
) -> None:
    """Runs a query with Spark's own sink over everything available."""
    kafka = {"kafka.bootstrap.servers": servers}
    stream = spark.readStream.format("kafka").options(**kafka, **options)
    frame = stream.options(subscribe=source, startingOffsets="earliest").load()
    writer = frame.select("key", "value").writeStream.format("kafka")
    writer = writer.options(**kafka, topic=target, checkpointLocation=checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    query.stop()


def spoken(
    session: SparkSession, settings: dict[str, Any], source: str, transform: Transform, **read: Any
) -> list[str]:
    """The stderr output of a query's start, in the process that starts it."""
    text = io.StringIO()
    with (
        closing(ExactlyOnceSink(**arguments(**settings))) as sink,
        contextlib.redirect_stderr(text),
    ):
        frame = sink.read(session, **{"subscribe": source, **read})
        process_available(sink.write(transform(frame)), timeout=240)
    return [line for line in text.getvalue().splitlines() if line.startswith("spark-eos: ")]


class QueryProcess:
    """A query in its own process, with its JVM and workers in one process group."""

    def __init__(
        self,
        flow: Flow,
        log: Path,
        *,
        main: str = "support.query_main",
        through: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        self.log = log
        self.flow = flow
        if config := {**flow.config, **settings.pop("config", {})}:
            settings["config"] = config
        given = flat({**flow.options(), "source": flow.source, **settings})
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [*through, sys.executable, "-m", main, json.dumps(given)],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        self._guard = SessionGuard(self.process.pid)

    def __enter__(self) -> "QueryProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Sends SIGKILL to the driver, JVM and workers."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._guard.dismiss()

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, timeout: float = 240) -> int:
        return self.process.wait(timeout)

    def reports(self) -> list[dict[str, Any]]:
        """The query's batch reports so far."""
        return [
            json.loads(line.removeprefix("REPORT "))
            for line in self.output().splitlines()
            if line.startswith("REPORT ")
        ]

    def until(self, condition: Callable[[], Any], what: str, timeout: float = 200) -> Any:
        """Waits for a condition while the query runs."""

        def checked() -> Any:
            found = condition()
            assert found or self.process.poll() is None, (
                f"the query has ended before {what}:\n{self.output()[-4000:]}"
            )
            return found

        return until(checked, lambda: f"{what}\n{self.output()[-4000:]}", timeout)


def until(condition: Callable[[], Any], what: Callable[[], str], timeout: float = 200) -> Any:
    """Waits until a condition holds; returns its value. The limit only ends a hang."""
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {timeout} s for: {what()}"
        time.sleep(0.05)
    return found


def slot_holders(directory: str, among: Iterable[int] | None = None) -> dict[str, int]:
    """The processes that hold the slots of transactional ids, by lock file."""
    pids = Path("/proc").glob("[0-9]*") if among is None else map(str, among)
    held = {}
    for process in (Path("/proc", pid) for pid in pids):
        try:
            links = [str(fd.readlink()) for fd in (process / "fd").iterdir()]
        except OSError:
            continue
        for link in links:
            if link.startswith(directory) and "/slot-" in link:
                held[link] = int(process.name)
    return held
