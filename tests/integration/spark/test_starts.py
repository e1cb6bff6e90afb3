"""A start opens each cluster's connections once and runs each check once."""

import multiprocessing
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_eos import ExactlyOnceSink
from spark_eos._checks import preflight, start
from spark_eos._checks.start import Start
from spark_eos._client.kafka_python import EventLoop
from spark_eos._kafka.cluster import cluster_id
from spark_eos._kafka.protocol import ConsumerGroupHeartbeatRequest
from spark_eos._spark.classic import ClassicRuntime
from spark_eos.errors import TopicNotFoundError, UnsupportedPipelineError
from support import staging
from support.flow import Flow
from support.members import deadline, writer_settings
from support.proxy_faults import Request
from support.queries import relay, until
from support.sinks import changed
from support.writing import sent_requests

_CHECKS = ["features", "membership", "rights", "target", "transactions"]


@dataclass
class Starts:
    """This process's requests to brokers, and the number of its sets of connections."""

    flow: Flow
    requests: list[Request]
    loops: list[EventLoop] = field(default_factory=list)

    def checks(self) -> Counter[str]:
        """The checks since the last call, each with its number of requests."""
        asked, self.requests[:] = list(self.requests), []
        return Counter(filter(None, (self._check(request.message()) for request in asked)))

    def _check(self, message: Any) -> str:
        if isinstance(message, ApiVersionsRequest):
            # kafka-python's own has its own version.
            return "features" if message.client_software_version == "1" else ""
        if isinstance(message, InitProducerIdRequest):
            return "transactions"
        if isinstance(message, ConsumerGroupHeartbeatRequest):
            return "membership" if message.instance_id == message.member_id else ""
        if isinstance(message, MetadataRequest):
            names = {topic.name for topic in message.topics or ()}
            if message.include_topic_authorized_operations:
                return "rights" if self.flow.target in names else ""
            return "target" if names == {self.flow.target} else ""
        return ""


@pytest.fixture
def starts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Starts:
    """A flow, by the name of its fixture; its brokers have found their coordinators."""
    flow: Flow = request.getfixturevalue(getattr(request, "param", "flow"))
    # A coordinator that is loading has a request sent again.
    settings = changed(writer_settings(flow), group_id=f"{flow.group_id}-before")
    with closing(Start(settings)) as before:
        preflight.check_authorization(before, settings, [], deadline())
        preflight.check_authorization(before, writer_settings(flow), [], deadline())
    found = Starts(flow, sent_requests(monkeypatch))
    genuine = EventLoop.__init__

    def init(loop: EventLoop, *arguments: Any) -> None:
        genuine(loop, *arguments)
        found.loops.append(loop)

    monkeypatch.setattr(EventLoop, "__init__", init)
    return found


def _open(starts: Starts) -> int:
    threads = {thread for loop in starts.loops if (thread := loop._io_thread)}
    return sum(thread.is_alive() for thread in threads)


@contextmanager
def _run(sink: ExactlyOnceSink, frame: DataFrame) -> Iterator[None]:
    """Writes everything available."""
    query = sink.write(frame).start()
    try:
        query.processAllAvailable()
        yield
    finally:
        query.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("starts", "pipeline", "clusters"),
    [
        ("flow", relay, 1),
        ("mirrored_flow", relay, 2),
        ("flow", staging.repartitioned, 1),
    ],
    ids=["direct", "mirrored", "staged"],
    indirect=["starts"],
)
def test_a_whole_start_opens_each_cluster_once_and_checks_once(
    starts: Starts, spark_eos_session: SparkSession, pipeline: Any, clusters: int
) -> None:
    flow = starts.flow
    flow.produce(map(staging.record, range(10)))
    with closing(ExactlyOnceSink(**flow.options())) as sink:
        frame = pipeline(sink.read(spark_eos_session, subscribe=flow.source))
        reading = starts.checks()
        with _run(sink, frame):
            checks = reading + starts.checks()
            assert len(flow.written()) == 10
            assert len(starts.loops) == _open(starts) == clusters
    assert sorted(reading) == ["features", "membership", "rights", "transactions"]
    assert checks == Counter(_CHECKS)
    until(lambda: not _open(starts), lambda: "the connections' end")


@pytest.mark.slow
def test_a_sink_that_is_used_again_starts_again(
    starts: Starts, spark_eos_session: SparkSession
) -> None:
    flow = starts.flow
    with closing(ExactlyOnceSink(**flow.options())) as sink:
        frame = relay(sink.read(spark_eos_session, subscribe=flow.source))
        writer = sink.write(frame)
        for number in range(3):
            flow.produce([str(number)])
            if number == 2:
                writer = sink.write(frame)
            query = writer.start()
            query.processAllAvailable()
            query.stop()
            assert starts.checks() == Counter(_CHECKS)
            assert len(starts.loops) == number + 1
            until(lambda: not _open(starts), lambda: "the connections' end")
    assert sorted(flow.values()) == ["0", "1", "2"]


@pytest.mark.slow
def test_what_was_found_out_long_ago_is_asked_again(
    starts: Starts, spark_eos_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_VALID", 0.0)
    flow = starts.flow
    flow.produce(["a"])
    with closing(ExactlyOnceSink(**flow.options())) as sink:
        frame = relay(sink.read(spark_eos_session, subscribe=flow.source))
        with _run(sink, frame):
            assert _open(starts) == 1
    # To read, to check, to say where it begins, and to run.
    assert len(starts.loops) == 4
    assert starts.checks() == Counter(_CHECKS * 3) - Counter(["target"])
    assert flow.values() == ["a"]


def test_a_start_that_leads_to_no_query_leaves_no_thread(
    starts: Starts, spark_eos_session: SparkSession
) -> None:
    flow = starts.flow
    sink = ExactlyOnceSink(**flow.options())
    frame = sink.read(spark_eos_session, subscribe=flow.source)
    assert _open(starts) == 1
    with pytest.raises(UnsupportedPipelineError):
        sink.write(frame.select("source"))
    assert _open(starts) == 0
    with pytest.raises(TopicNotFoundError):
        sink.read(spark_eos_session, subscribe="nothing")
    assert _open(starts) == 0
    sink.read(spark_eos_session, subscribe=flow.source)
    assert _open(starts) == 1
    sink.close()
    assert _open(starts) == 0
    sink.read(spark_eos_session, subscribe=flow.source)
    assert _open(starts) == 1
    del sink
    until(lambda: not _open(starts), lambda: "the connections' end")


def test_a_run_that_can_not_begin_leaves_no_thread(
    starts: Starts, spark_eos_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_runtime: ClassicRuntime, _run: Any) -> None:
        raise RuntimeError("interrupted")

    monkeypatch.setattr(ClassicRuntime, "end_with", interrupted)
    flow = starts.flow
    flow.produce(["a"])
    sink = ExactlyOnceSink(**flow.options())
    query = sink.write(relay(sink.read(spark_eos_session, subscribe=flow.source))).start()
    with pytest.raises(StreamingQueryException, match="interrupted"):
        query.processAllAvailable()
    until(lambda: not _open(starts), lambda: "the connections' end")


def _cluster(starting: Start) -> str:
    with starting as begun:
        return cluster_id(begun.target, deadline())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_begins_its_own(flow: Flow) -> None:
    starting = Start(writer_settings(flow))
    known = _cluster(starting)
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def ask() -> None:
        sender.send(_cluster(starting))
        starting.close()

    fork = multiprocessing.get_context("fork").Process(target=ask)
    fork.start()
    try:
        assert receiver.poll(30), "the fork waits for a thread that it does not have"
        assert receiver.recv() == known
    finally:
        fork.kill()
        fork.join()
    assert _cluster(starting) == known
    starting.close()
    assert "spark-eos-closing" not in str(threading.enumerate())
