"""Whole batches on the real broker and real Spark: written, skipped and committed rows."""

import datetime
import itertools
import os
import re
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._spark.failed_query import cause_of
from spark_eos._worker.plan import task_count, wait_per_record
from spark_eos.errors import QueryStoppedError, SparkEosError
from support import groups
from support.apis import Queries, started
from support.flow import Flow
from support.mirroring import MirroredFlow
from support.queries import relay, run_available, running, slot_holders, until
from support.sinks import arguments
from support.versions import OFFSET_COMMIT


@pytest.mark.slow
def test_rows_of_several_batches_arrive_once_each(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(40))
    reports = run_available(
        spark_eos_session, flow, read={"options": {"maxOffsetsPerTrigger": "10"}}
    )
    assert [r.rows_written for r in reports] == [10, 10, 10, 10]
    assert sorted(map(int, flow.values())) == list(range(40))
    # Those of a source partition (even numbers, odd ones) in their order in each target partition.
    for target, rest in itertools.product(range(2), range(2)):
        found = [int(m.value() or b"") for m in flow.written() if m.partition() == target]
        assert [n for n in found if n % 2 == rest] == sorted(n for n in found if n % 2 == rest)
    assert flow.committed() == {0: 20, 1: 20}
    assert flow.open_transactions() == []
    first = reports[0]
    assert (first.group_id, first.batch_id, first.attempts) == (flow.group_id, 0, 1)
    assert first.offset_commit_version == OFFSET_COMMIT
    assert {(p.partition, p.start, p.end, p.rows_written) for p in first.partitions} == {
        (0, 0, 5, 5),
        (1, 0, 5, 5),
    }
    assert first.milliseconds["total"] >= first.milliseconds["job"] > 0


def test_every_column_reaches_the_record(
    new_flow: Callable[..., Flow], spark_eos_session: SparkSession
) -> None:
    flow, other = new_flow(partitions=3), new_flow(partitions=3)
    # Not so long ago that the broker's retention would take the records away.
    now = datetime.datetime.now(datetime.timezone.utc)
    stamp = now.replace(microsecond=123_000) - datetime.timedelta(hours=1)
    flow.produce(
        ["plain", None, "elsewhere"],
        partition=0,
        key=b"key",
        headers=[("first", b"1"), ("none", None), ("first", b"2")],
        timestamp=int(stamp.timestamp() * 1000),
    )
    flow.produce(["no key"], partition=1)

    def transform(frame: DataFrame) -> DataFrame:
        elsewhere = F.col("value") == F.lit(b"elsewhere")
        return frame.select(
            "source",
            "key",
            "value",
            "headers",
            "timestamp",
            F.when(elsewhere, other.target).alias("topic"),
            F.when(elsewhere, 2).alias("partition"),
        )

    run_available(spark_eos_session, flow, transform, read={"include_headers": True})
    records = {(m.value() or b"").decode(): m for m in [*flow.written(), *other.written()]}
    assert records.keys() == {"plain", "", "elsewhere", "no key"}
    tombstone, plain = records[""], records["plain"]
    assert tombstone.value() is None
    assert tombstone.key() == b"key"
    assert plain.timestamp()[1] == int(stamp.timestamp() * 1000)
    assert plain.headers() == [("first", b"1"), ("none", None), ("first", b"2")]
    assert records["no key"].key() is None
    assert records["no key"].headers() is None
    elsewhere = records["elsewhere"]
    assert (elsewhere.topic(), elsewhere.partition()) == (other.target, 2)


@pytest.mark.slow
def test_keys_are_partitioned_as_java_does(
    new_flow: Callable[..., Flow], spark_eos_session: SparkSession
) -> None:
    flow = new_flow(partitions=8)
    keys = [f"customer-{n}" for n in range(60)]
    flow.produce(keys, key=str.encode)
    run_available(spark_eos_session, flow)
    ours = {m.key(): m.partition() for m in flow.written()}
    # Spark's own sink uses Kafka's Java producer.
    java = f"java-{flow.name}"
    flow.broker.create_topic(java, 8)
    frame = spark_eos_session.createDataFrame([(k, k) for k in keys], "key string, value string")
    frame.write.format("kafka").options(
        **{"kafka.bootstrap.servers": flow.bootstrap_servers, "topic": java}
    ).save()
    assert ours == {m.key(): m.partition() for m in flow.written(java)}
    assert len(set(ours.values())) > 1


def _taking_its_time(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(0.2)
        yield batch


@pytest.mark.slow
@pytest.mark.parametrize("slow", [False, True])
def test_few_rows_go_in_one_task_unless_the_query_is_slow(
    flow: Flow, spark_eos_session: SparkSession, *, slow: bool
) -> None:
    flow.produce(range(80))

    def transform(frame: DataFrame) -> DataFrame:
        rows = relay(frame)
        return rows.mapInArrow(_taking_its_time, rows.schema) if slow else rows

    reading = {"options": {"maxOffsetsPerTrigger": "10"}}
    reports = run_available(spark_eos_session, flow, transform, read=reading)
    # The first one also waits for Spark's workers and consumers to start.
    tasks = [report.transactions for report in reports]
    assert tasks[0] == 2
    for before, after in itertools.pairwise(reports):
        wait = wait_per_record(before.milliseconds["wait"], before.transactions, 10)
        assert after.transactions == task_count(10, 2, 2, wait_ms=wait)
    assert (1 in tasks) != slow


def test_a_batch_replayed_after_a_crash_writes_nothing_twice(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(20))
    read = {"options": {"maxOffsetsPerTrigger": "10"}}
    run_available(spark_eos_session, flow, read=read)
    # As if the driver had died between the tasks' commits and Spark's commit log.
    for name in ("1", ".1.crc"):
        Path(flow.checkpoint, "commits", name).unlink()
    reports = run_available(spark_eos_session, flow, read=read)
    assert [(r.batch_id, r.rows_written, r.rows_skipped) for r in reports] == [(1, 0, 10)]
    assert sorted(map(int, flow.values())) == list(range(20))


@pytest.mark.slow
def test_an_older_checkpoint_that_is_put_back_repeats_nothing(
    flow: Flow, spark_eos_session: SparkSession, tmp_path: Path
) -> None:
    flow.produce(range(10))
    run_available(spark_eos_session, flow)
    shutil.copytree(flow.checkpoint, tmp_path / "older")
    flow.produce(range(10, 20))
    run_available(spark_eos_session, flow)
    shutil.rmtree(flow.checkpoint)
    shutil.copytree(tmp_path / "older", flow.checkpoint)
    flow.produce(range(20, 30))
    reports = run_available(spark_eos_session, flow)
    assert sum(report.rows_skipped for report in reports) == 10
    assert sorted(map(int, flow.values())) == list(range(30))


def test_starting_offsets_count_where_the_group_has_none(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(2))
    run_available(spark_eos_session, flow, read={"starting_offsets": "latest"})
    assert flow.values() == []
    assert flow.committed() == {0: 1, 1: 1}


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["flow", "mirrored_flow"])
def test_partitions_added_while_stopped_are_read_from_the_start(
    delivery: str, request: pytest.FixtureRequest, spark_eos_session: SparkSession
) -> None:
    flow: Flow = request.getfixturevalue(delivery)
    latest = {"starting_offsets": "latest"}
    flow.produce(range(2))
    run_available(spark_eos_session, flow, read=latest)
    source = flow.other if isinstance(flow, MirroredFlow) else flow.broker
    source.add_partitions(flow.source, 3)
    flow.produce(range(2, 5), partition=2)
    flow.checkpoint += "-empty"
    run_available(spark_eos_session, flow, read=latest)
    assert sorted(flow.values()) == ["2", "3", "4"]


@pytest.mark.slow
def test_starting_offsets_count_besides_manually_set_offsets(
    new_flow: Callable[..., Flow], spark_eos_session: SparkSession
) -> None:
    flow, second = new_flow(), new_flow()
    flow.produce(range(4))
    second.produce(range(4, 6))
    manual_offsets = {TopicPartition(flow.source, 0): 1, TopicPartition(flow.source, 1): 1}
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, manual_offsets)
    read = {"starting_offsets": "latest", "subscribe": f"{flow.source},{second.source}"}
    run_available(spark_eos_session, flow, read=read)
    assert sorted(flow.values()) == ["2", "3"]


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", ["kept", "emptied"])
def test_a_topic_added_while_all_offsets_are_set_manually(
    checkpoint: str,
    new_flow: Callable[..., Flow],
    spark_eos_session: SparkSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a checkpoint, nothing shows that a query has run: the group may be new."""
    flow = new_flow()
    read = {
        "subscribe": None,
        "subscribePattern": f"in-{flow.name}.*",
        "starting_offsets": "latest",
    }
    earliest = {**read, "starting_offsets": "earliest"}
    flow.produce(range(4))
    run_available(spark_eos_session, flow, read=earliest)
    manual_offsets = {TopicPartition(flow.source, 0): 2, TopicPartition(flow.source, 1): 2}
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, manual_offsets)
    added = new_flow(name=f"{flow.name}-added")
    added.produce(range(4, 10))
    flow.produce(range(10, 12))
    if checkpoint == "emptied":
        flow.checkpoint += "-empty"
    run_available(spark_eos_session, flow, read=read)
    expected = [*range(4), *range(10, 12)] + (list(range(4, 10)) if checkpoint == "kept" else [])
    assert sorted(map(int, flow.values())) == sorted(expected)
    skipped = f"only new records of {added.source}-0, {added.source}-1"
    # `sink.read` does not know whether there is a checkpoint.
    assert skipped in caplog.text
    # From now on the texts of the group's offsets tell.
    flow.produce(range(12, 14))
    added.produce(range(14, 16))
    run_available(spark_eos_session, flow, read=read)
    expected += range(12, 16)
    assert sorted(map(int, flow.values())) == sorted(expected)


def test_partitions_that_are_assigned(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(["a0", "a1"])
    read = {"subscribe": None, "assign": f'{{"{flow.source}": [1]}}'}
    run_available(spark_eos_session, flow, read=read)
    assert flow.values() == ["a1"]
    assert flow.committed() == {1: 1}


def test_members_leave_when_the_query_ends(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(2))
    reports: list[BatchReport] = []
    sink = ExactlyOnceSink(**flow.options(), on_batch=reports.append)
    frame = sink.read(spark_eos_session, subscribe=flow.source)
    query = sink.write(frame.select("source", "value")).start()
    until(lambda: reports, lambda: "a batch")
    assert len(flow.members()) == 1
    query.stop()
    until(lambda: not flow.members(), lambda: "members to leave")
    # And the query can be started again, by the same sink.
    flow.produce(["again"])
    query = sink.write(frame.select("source", "value")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(flow.values()) == ["0", "1", "again"]
    sink.close()
    assert flow.members() == []


def test_a_query_stopped_in_a_batch_leaves_no_transaction_open(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    """Otherwise, consumers of the output would wait for transaction_timeout_ms, a minute."""
    # Only one task has rows, so no idle worker is frozen: Spark would give such a worker another
    # task, which would never run. The rows before the held one are large, to leave all buffers.
    values = [*(f"a{n}" for n in range(400)), "hold", *(f"b{n}" for n in range(99))]
    flow.produce(values, partition=0, key=b"x" * 4_000)

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            if b"hold" in rows.column("value").to_pylist():
                time.sleep(60)
            yield rows

    few_rows = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark_eos_session.conf.set(few_rows, "50")
    try:
        sink = ExactlyOnceSink(**flow.options())
        frame = relay(sink.read(spark_eos_session, subscribe=flow.source))
        query = sink.write(frame.mapInArrow(hold, frame.schema)).start()
        ids = until(flow.open_transactions, lambda: "an open transaction")
        # Freeze the busy worker: a worker that waits for rows would see their end, and abort.
        busy = {f"slot-{name.rpartition('/')[2]}" for name in ids}
        for lock, pid in slot_holders(flow.worker_directory).items():
            if Path(lock).stem in busy:
                os.kill(pid, signal.SIGSTOP)
        query.stop()
    finally:
        spark_eos_session.conf.unset(few_rows)
    assert query.exception() is None
    until(lambda: not flow.open_transactions(), lambda: "the transaction's end", timeout=45)
    sweep = f"spark-eos-sweep-{flow.group_id}"
    until(lambda: sweep not in str(threading.enumerate()), lambda: "the sweep's end")
    run_available(spark_eos_session, flow)
    assert flow.values() == values


@pytest.mark.slow
def test_workers_whose_lock_files_were_removed(flow: Flow, spark_eos_session: SparkSession) -> None:
    """Like a cleaner of temporary files: a new worker never gets an id that is in use."""
    reports: list[BatchReport] = []

    def write_batch() -> None:
        written = sum(report.rows_written for report in reports)
        # So many that each partition is given a task.
        for partition in range(flow.partitions):
            flow.produce([f"{len(reports)}/{n}" for n in range(2_000)], partition=partition)
        wanted = written + 2_000 * flow.partitions
        until(
            lambda: sum(report.rows_written for report in reports) == wanted,
            lambda: f"{wanted} rows of {reports}",
        )

    with running(spark_eos_session, flow, on_batch=reports.append):
        write_batch()
        workers = slot_holders(flow.worker_directory)
        assert len(workers) == flow.partitions
        for file in workers:
            Path(file).unlink()
        os.kill(workers[max(workers)], signal.SIGKILL)
        for _ in range(3):
            write_batch()
    assert {report.attempts for report in reports} == {1}


def _slow(frame: DataFrame) -> DataFrame:
    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            time.sleep(20)
            yield rows

    rows = frame.select("source", "value")
    return rows.mapInArrow(wait, rows.schema)


@pytest.mark.slow
def test_a_job_that_is_cancelled_is_no_stop_of_the_query(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(10))
    with running(spark_eos_session, flow, _slow) as query:
        context = spark_eos_session.sparkContext
        jobs, run_id = context.statusTracker(), str(query.runId)
        until(lambda: jobs.getJobIdsForGroup(run_id), lambda: "the batch's job")
        context.cancelJobGroup(run_id)
        with pytest.raises(StreamingQueryException) as failure:
            query.awaitTermination(120)
    assert "cancelled" in str(failure.value)
    assert "QueryStoppedError" not in str(failure.value)


@pytest.mark.slow
def test_a_function_may_name_its_own_jobs(flow: Flow, spark_eos_session: SparkSession) -> None:
    context = spark_eos_session.sparkContext

    def batch(sink: ExactlyOnceSink, frame: DataFrame, batch_id: int) -> None:
        context.setJobGroup(f"batch {batch_id}", "of the user's own")
        # The heartbeat thread looks about once a second whether the run is over.
        time.sleep(1.5)
        sink(frame, batch_id)

    with running(spark_eos_session, flow, function=batch) as query:
        flow.produce(range(4))
        until(lambda: len(flow.values()) == 4, lambda: str(query.exception()))
        flow.produce(range(4, 8))
        until(lambda: len(flow.values()) == 8, lambda: str(query.exception()))
        members = flow.members()
        time.sleep(2)
        # The batches were one run's, which goes on.
        assert flow.members() == members
        assert len(members) == 1


def _ended_without_the_sink(
    session: SparkSession, options: dict[str, Any], source: str, how: str
) -> str:
    """The error of a query whose function does not write its last batch."""
    sink = ExactlyOnceSink(**arguments(**options))

    def batch(rows: DataFrame, batch_id: int) -> None:
        if how == "its error is caught":
            with suppress(SparkEosError):
                sink(rows.drop("value"), batch_id)
        elif batch_id == 0:
            sink(rows, batch_id)

    frame = sink.read(session, subscribe=source, options={"maxOffsetsPerTrigger": "2"})
    writer = sink.write(frame.select("source", "value")).foreachBatch(batch)
    try:
        started(writer.trigger(availableNow=True)).awaitTermination(240)
    except StreamingQueryException as error:
        return cause_of(str(error))
    finally:
        sink.close()
    return "nothing"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "delivery", "number"),
    [
        ("it is left out", "direct", 1),
        pytest.param("it is left out", "staged", 1, marks=pytest.mark.slow),
        pytest.param("its error is caught", "direct", 0, marks=pytest.mark.slow),
    ],
)
def test_a_function_that_does_not_write_its_last_batch(
    flow: Flow,
    queries: Queries,
    spark_eos_session: SparkSession,
    how: str,
    delivery: str,
    number: int,
) -> None:
    flow.produce(range(4))
    options = {
        **flow.options(),
        "delivery": delivery,
        "progress_topic": f"progress-{flow.name}",
        "progress_partitions": 3,
    }
    cause = queries.ask(_ended_without_the_sink, options, flow.source, how)
    words = f"UnsupportedPipelineError: .* batch {number} is not written: .* Call the sink once"
    assert re.match(words, cause), cause
    # The next start has no gap.
    run_available(spark_eos_session, flow, **{**options, "delivery": delivery})
    assert sorted(flow.values()) == ["0", "1", "2", "3"]


def test_a_query_stopped_in_a_batch_says_so_briefly(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    """Text that Spark's own stream thread reads must be short: see `as_query_stopped_error`."""
    errors: list[BaseException] = []

    def batch(sink: ExactlyOnceSink, frame: DataFrame, batch_id: int) -> None:
        try:
            sink(frame, batch_id)
        except BaseException as error:
            errors.append(error)
            raise

    flow.produce(range(10))
    with running(spark_eos_session, flow, _slow, function=batch) as query:
        until(flow.members, lambda: "the batch's member")
        jobs = spark_eos_session.sparkContext.statusTracker()
        until(lambda: jobs.getJobIdsForGroup(str(query.runId)), lambda: "the batch's job")
    assert query.exception() is None
    (error,) = errors
    assert isinstance(error, QueryStoppedError)
    assert len("".join(traceback.format_exception(error))) < 5_000
    assert flow.open_transactions() == []
    assert flow.members() == []


@pytest.mark.slow
def test_two_sources_in_one_query(
    new_flow: Callable[..., Flow], spark_eos_session: SparkSession
) -> None:
    flow, second = new_flow(), new_flow()
    flow.produce(["a0", "a1"])
    second.produce(["b0", "b1"])
    reports: list[BatchReport] = []
    sink = ExactlyOnceSink(**flow.options(), on_batch=reports.append)
    frames = [sink.read(spark_eos_session, subscribe=f.source) for f in (flow, second)]
    united = frames[0].unionByName(frames[1]).coalesce(1)
    query = sink.write(united.select("source", "value")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(flow.values()) == ["a0", "a1", "b0", "b1"]
    assert flow.committed() == {0: 1, 1: 1}
    assert reports[0].transactions == 1
