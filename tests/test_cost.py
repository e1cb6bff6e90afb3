"""What a batch must not cost: requests, tasks and waits that Spark has in store for it."""

import gc
import socket
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from pyspark.sql import SparkSession

from spark_eos import worker_process
from spark_eos.plan import BatchRange, task_count
from support.flow import Flow
from support.proxy import KafkaProxy
from support.queries import relay, run_available


def test_reading_asks_for_the_ends_of_partitions_now_and_then_only(
    proxied_flow: Flow, proxy: KafkaProxy, spark_eos_session: SparkSession
) -> None:
    """Kafka's defaults make Spark ask twice for every 500 records."""
    proxied_flow.produce(range(10_000))
    run_available(spark_eos_session, proxied_flow)
    assert len(proxied_flow.values()) == 10_000
    fetches = [r.message() for r in proxy.requests if r.api_key == FetchRequest.API_KEY]
    from_spark = [f for f in fetches if f.max_wait_ms != 20]
    assert from_spark
    # It asks while the next fetch waits at the end of the topic.
    assert {f.max_wait_ms for f in from_spark} == {1}
    assert proxy.count(ListOffsetsRequest, "consumer-") < 20


def test_small_batches_take_no_more_tasks_than_can_run_at_a_time(
    new_flow: Callable[..., Flow], spark_eos_session: SparkSession
) -> None:
    flow = new_flow(partitions=6)
    for partition in range(6):
        flow.produce(range(10), partition=partition)
    cores = spark_eos_session.sparkContext.defaultParallelism
    assert cores < 6
    reports = run_available(
        spark_eos_session, flow, relay, read={"options": {"maxOffsetsPerTrigger": "12"}}
    )
    assert [r.transactions for r in reports] == [cores] * 5
    assert sorted(flow.values()) == sorted(str(n) for n in range(10) for _ in range(6))


@pytest.mark.parametrize(
    ("records", "cores", "tasks"),
    [(0, 2, 2), (100, 2, 2), (20_001, 2, 3), (20_001, 8, 8), (10**9, 2, 10), (100, 64, 10)],
)
def test_task_count(records: int, cores: int, tasks: int) -> None:
    starts = {("a", index): 5 for index in range(10)}
    ends = {**starts, ("a", 3): 5 + records}
    assert task_count(BatchRange(1, starts, ends), cores) == tasks
    assert task_count(BatchRange(1, {("a", 0): 0}, ends), cores) == 10


def test_what_workers_have_loaded_is_not_searched_for_garbage_after_every_task(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(4))
    run_available(spark_eos_session, flow)

    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(batches)
        yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()]})

    cores = spark_eos_session.sparkContext.defaultParallelism
    frame = spark_eos_session.range(cores, numPartitions=cores).mapInArrow(frozen, "frozen long")
    assert max(row.frozen for row in frame.collect()) > 10_000


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """The end of a TCP connection that delays its acknowledgements."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as here,
        server.accept()[0] as there,
    ):
        for _ in range(20):
            there.sendall(b"x")
            here.recv(1)
            here.sendall(b"x")
            there.recv(1)
        yield here


def test_workers_acknowledge_what_spark_sends_at_once(
    connection: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _acknowledges_at_once(connection) == 0
    monkeypatch.setattr(worker_process, "_quick", True)
    monkeypatch.setattr(worker_process, "_sparks_sockets", worker_process._open_sockets())
    worker_process.hasten()
    assert _acknowledges_at_once(connection) == 1
    connection.close()
    worker_process.hasten()


def _acknowledges_at_once(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
