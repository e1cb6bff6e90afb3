"""The APIs of spark-eos behind one interface, so that a test can run once for each of them.

`Api.start` starts a query and returns a `RunningQuery`. Only plain values are passed, because a
query may be started and run in a process other than the test's.
"""

import dataclasses
import itertools
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import tenacity
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos import BatchReport, ExactlyOnceSink
from support.flow import Flow
from support.pipelines import PIPELINES
from support.sinks import arguments
from support.writers import Writer

Answer = TypeVar("Answer")


@dataclasses.dataclass(frozen=True)
class ReportFile:
    """An ``on_batch`` that appends reports to a file as JSON lines."""

    path: Path

    def __call__(self, report: BatchReport) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(dataclasses.asdict(report)) + "\n")

    def reports(self) -> list[dict[str, Any]]:
        text = self.path.read_text() if self.path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]


@dataclasses.dataclass(frozen=True)
class Order:
    """A query to start."""

    sink: Mapping[str, Any]  # arguments of ExactlyOnceSink
    sources: list[str]  # topics, each read as its own stream
    pipeline: str  # a name in `support.pipelines`
    arguments: Mapping[str, Any]  # arguments of the pipeline besides its sources
    available_now: bool  # whether the query ends once it has written everything available
    read: Mapping[str, Any]  # further arguments of sink.read
    read_options: Mapping[str, str]  # further options of Spark's Kafka source
    config: Mapping[str, str]  # settings of the session while the query starts


class Queries:
    """The queries of one session, by number."""

    def __init__(self, url: str | None = None) -> None:
        builder = SparkSession.builder if url is None else SparkSession.builder.remote(url)
        self._session = builder.getOrCreate()
        if url is not None:
            _retry_for_two_minutes(self._session)
        self._queries: dict[int, tuple[StreamingQuery, Callable[[], None]]] = {}
        self._numbers = itertools.count()

    def start(self, order: Order) -> int:
        """Starts a query; returns its number."""
        writer, close = _sink_writer(self._session, order)
        if order.available_now:
            writer = writer.trigger(availableNow=True)
        number = next(self._numbers)
        with _configured(self._session, order.config):
            self._queries[number] = (started(writer), close)
        return number

    def ask(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """Return the result of an importable function of the session and further arguments."""
        try:
            return function(self._session, *arguments)
        except pytest.fail.Exception as failed:
            # It is not an Exception, and would end the client process for all other tests.
            raise AssertionError(str(failed)) from failed

    def wait(self, number: int, timeout: int) -> str | None:
        """Return the query's error, or None; raise TimeoutError if it doesn't end."""
        query, close = self._queries[number]
        try:
            if not query.awaitTermination(timeout):
                raise TimeoutError(f"the query goes on after {timeout} s")
        except StreamingQueryException as error:
            return str(error)
        finally:
            close()
        return None

    def stop(self, number: int) -> None:
        query, close = self._queries[number]
        query.stop()
        close()


def _retry_for_two_minutes(session: SparkSession) -> None:
    """Retries a request to a lost server for only two minutes; the default is ten."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    policy = DefaultPolicy(max_retries=15, max_backoff=5_000)
    cast("Any", session).client.set_retry_policies([policy])


@contextmanager
def _configured(session: SparkSession, config: Mapping[str, str]) -> Iterator[None]:
    """Set session settings while a query starts: the query keeps the settings it started with."""
    before = {name: session.conf.get(name) for name in config}
    try:
        for name, value in config.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, kept in before.items():
            session.conf.set(name, str(kept))


def _sink_writer(session: SparkSession, order: Order) -> tuple[Writer, Callable[[], None]]:
    sink = ExactlyOnceSink(**arguments(**order.sink))
    frames = [
        sink.read(
            session,
            **{"subscribe": topic, **order.read},
            include_headers=True,
            options=order.read_options,
        )
        for topic in order.sources
    ]
    return sink.write(PIPELINES[order.pipeline](*frames, **order.arguments)), sink.close


# Connect's server allows a sink's process 10 s to start, which a busy machine may exceed.
patiently = tenacity.retry(
    retry=tenacity.retry_if_exception_message(match="(?s).*waiting for the Python worker"),
    stop=tenacity.stop_after_delay(200),
    reraise=True,
)


@patiently
def started(writer: Writer) -> StreamingQuery:
    return writer.start()


class RunningQuery:
    """A query that a test has started."""

    def __init__(self, queries: Queries, number: int, reports: ReportFile) -> None:
        self._queries = queries
        self._number = number
        self._reports = reports

    def error(self, timeout: int = 240) -> str | None:
        """Waits for the query's end; returns its error, or None."""
        return self._queries.wait(self._number, timeout)

    def replay(self, timeout: int = 240) -> None:
        """Waits until a query that ends by itself has written everything."""
        error = self.error(timeout)
        assert error is None, error

    def stop(self) -> None:
        """Stops the query, even in the middle of a batch."""
        self._queries.stop(self._number)

    def reports(self) -> list[dict[str, Any]]:
        """Reports of all batches written so far on the query's checkpoint."""
        return self._reports.reports()


class Api:
    """Starts queries in one session through one of the APIs."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def start(
        self,
        flow: Flow,
        pipeline: str = "relay",
        *,
        arguments: Mapping[str, Any] | None = None,
        also: list[str] | None = None,
        available_now: bool = True,
        max_offsets: int | None = None,
        read: Mapping[str, Any] | None = None,
        config: Mapping[str, str] | None = None,
        **options: Any,
    ) -> RunningQuery:
        reports = ReportFile(Path(f"{flow.checkpoint}.reports"))
        order = Order(
            sink={**flow.options(), "on_batch": reports, **options},
            sources=[flow.source, *(also or [])],
            pipeline=pipeline,
            arguments=arguments or {},
            available_now=available_now,
            read=read or {},
            read_options={} if max_offsets is None else {"maxOffsetsPerTrigger": str(max_offsets)},
            config=config or {},
        )
        return RunningQuery(self._queries, self._queries.start(order), reports)


class _Manager(BaseManager):
    pass


_Manager.register("Queries", Queries)


@contextmanager
def connect_queries(url: str) -> Iterator[Queries]:
    """Queries of a Spark Connect server, in a client process: no process can use both APIs."""
    with _Manager(ctx=multiprocessing.get_context("spawn")) as manager:
        yield cast("Any", manager).Queries(url)
