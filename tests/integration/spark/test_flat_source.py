"""Tasks get the fields of ``source`` as separate columns; users see the struct that they read."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos._exactly_once.delivery import PlannedBatch
from spark_eos._spark import batch_job
from support.flow import Flow
from support.holding import HeldRows
from support.manual_members import drop_members
from support.queries import relay, run_available

_FLAT = ["__source_partition", "__source_offset"]


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The columns of each batch that reaches a sink."""
    found: list[list[str]] = []
    run = batch_job.BatchJobs.run

    def noting(self: batch_job.BatchJobs, planned: PlannedBatch, *others: object) -> object:
        found.append(planned.batch.frame.columns)
        return run(self, planned, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(batch_job.BatchJobs, "run", noting)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 1])
def test_tasks_get_the_topic_only_if_there_are_several(
    new_flow: Callable[..., Flow],
    spark_eos_session: SparkSession,
    arrived: list[list[str]],
    others: int,
) -> None:
    flow, *second = (new_flow() for _ in range(1 + others))
    for each in (flow, *second):
        each.produce(range(2))
    topics = ",".join(each.source for each in (flow, *second))
    run_available(spark_eos_session, flow, read={"subscribe": topics})
    assert sorted(flow.values()) == sorted(["0", "1"] * (1 + others))
    assert flow.committed() == {0: 1, 1: 1}
    topic = ["__source_topic"] * others
    assert [sorted(columns) for columns in arrived] == [sorted(["key", "value", *_FLAT, *topic])]


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 1])
def test_another_attempt_writes_the_remaining_partitions_rows(
    new_flow: Callable[..., Flow], spark_eos_session: SparkSession, tmp_path: Path, others: int
) -> None:
    flow, *second = (new_flow() for _ in range(1 + others))
    for each in (flow, *second):
        each.produce(range(4))
    held = HeldRows(tmp_path)
    reports: list[BatchReport] = []
    sink = ExactlyOnceSink(**flow.options(), on_batch=reports.append)
    topics = ",".join(each.source for each in (flow, *second))
    frame = relay(sink.read(spark_eos_session, subscribe=topics))
    query = sink.write(held.of(frame)).trigger(availableNow=True).start()
    held.until_reached()
    drop_members(flow, "spark-eos-0")
    held.let_go()
    query.awaitTermination()
    sink.close()
    assert [(r.attempts, r.rows_written) for r in reports] == [(2, 4 * (1 + others))]
    assert sorted(flow.values()) == sorted(["0", "1", "2", "3"] * (1 + others))


@pytest.mark.slow
def test_a_users_function_sees_the_columns_of_the_query(
    flow: Flow, spark_eos_session: SparkSession, arrived: list[list[str]]
) -> None:
    flow.produce(range(6))
    schemas: list[T.StructType] = []
    seen: list[object] = []

    def transform(frame: DataFrame) -> DataFrame:
        frame = frame.select("key", F.lit(1).alias("a.`number`"), "source", "value")
        made = frame.withMetadata("source", {"of": "the user"})
        schemas.append(made.schema)
        return made

    def batch(sink: ExactlyOnceSink, rows: DataFrame, batch_id: int) -> None:
        seen.append(rows.schema == schemas[0])
        seen.append(sorted(tuple(row.source) for row in rows.collect()))
        sink(rows.where("source.offset < 2"), batch_id)

    run_available(spark_eos_session, flow, transform, function=batch)
    assert seen == [
        True,
        [(flow.source, partition, offset) for partition in range(2) for offset in range(3)],
    ]
    assert sorted(flow.values()) == ["0", "1", "2", "3"]
    assert flow.committed() == {0: 3, 1: 3}
    assert arrived == [schemas[0].names]


@pytest.mark.slow
def test_rows_that_say_they_are_of_another_topic_are_refused(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(4))

    def elsewhere(frame: DataFrame) -> DataFrame:
        return relay(frame).withColumn(
            "source", F.struct(F.lit("t").alias("topic"), "source.partition", "source.offset")
        )

    with pytest.raises(StreamingQueryException, match="a row has no source"):
        run_available(spark_eos_session, flow, elsewhere)
    assert (flow.values(), flow.committed()) == ([], {0: 0, 1: 0})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["__SOURCE_offset", "__source_offset"])
def test_a_query_with_such_a_column_of_its_own_keeps_the_struct(
    flow: Flow, spark_eos_session: SparkSession, arrived: list[list[str]], name: str
) -> None:
    flow.produce(range(4))
    columns = ["source", "value", f"parse_json('1') AS {name}"]
    run_available(spark_eos_session, flow, lambda frame: frame.selectExpr(*columns))
    assert sorted(map(int, flow.values())) == list(range(4))
    assert arrived == [["source", "value", name]]
