"""Only rows that Kafka refuses because of their content become dead letters."""

from collections import Counter
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos._batch_report import BatchReport
from support.dead_letters import create_dead_letter_topic, headers_of
from support.flow import Flow
from support.queries import run_available


def case(name: str, then: Any, otherwise: Any = None) -> Column:
    """A column's value in rows made from records with that value."""
    return F.when(F.col("value") == F.lit(name).cast("binary"), then).otherwise(otherwise)


def run(spark: SparkSession, flow: Flow, transform: Any, **options: Any) -> tuple[BatchReport, str]:
    dlq = create_dead_letter_topic(flow)
    (report,) = run_available(spark, flow, transform, dead_letter_topic=dlq, **options)
    return report, dlq


@pytest.mark.slow
def test_each_kind(flow: Flow, spark_eos_session: SparkSession) -> None:
    compacted = f"compacted-{flow.name}"
    flow.broker.create_topic(compacted, 1, {"cleanup.policy": "compact"})
    small = f"small-{flow.name}"
    flow.broker.create_topic(small, 1, {"max.message.bytes": "10000"})
    bad = ["large", "larger", "huge", "nowhere", "no name", "partition", "header", "keyless"]
    flow.produce(["good", *bad, "last"], partition=0, headers=[("trace", b"t")])
    grown = F.coalesce(
        case("large", F.repeat(F.lit("x"), 20_000)),
        case("larger", F.repeat(F.lit("x"), 30_000)),
        case("huge", F.repeat(F.lit("x"), 2_000_000)),
        F.col("value").cast("string"),
    )
    topic = F.coalesce(
        case("large", small),
        case("larger", small),
        case("good", small),
        case("nowhere", "nowhere"),
        case("no name", "no valid name"),
        case("keyless", compacted),
    )
    header = F.array(
        F.struct(case("header", F.lit(None), "name").alias("key"), F.lit(b"v").alias("value"))
    )

    def transform(frame: DataFrame) -> DataFrame:
        return frame.select(
            "source",
            grown.alias("value"),
            topic.alias("topic"),
            case("partition", 17).cast("int").alias("partition"),
            header.alias("headers"),
        )

    # No less: a worker on a busy machine takes a while to connect.
    report, dlq = run(spark_eos_session, flow, transform, max_block_ms=3_000)
    assert flow.values(small) == ["good"]
    assert flow.values() == ["last"]
    found = flow.written(dlq)
    # The source's records as they came, in their order.
    assert [(m.value() or b"").decode() for m in found] == bad
    assert [headers_of(m)["trace"] for m in found] == ["t"] * len(bad)
    assert [headers_of(m)["__dlq.errors.offset"] for m in found] == [
        str(n + 1) for n in range(len(bad))
    ]
    reasons = [headers_of(m)["__dlq.errors.reason"] for m in found]
    assert reasons == [
        *["too_large"] * 3,
        *["unknown_topic"] * 2,
        "unknown_partition",
        "invalid_header",
        "invalid_record",
    ]
    assert report.dead_letters == dict(Counter(reasons))
    assert (report.attempts, report.rows_written) == (1, 2)
    assert flow.committed()[0] == len(bad) + 2
    assert flow.open_transactions() == []


def test_a_topic_for_dead_letters_that_is_missing(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(["good"], partition=0)
    with pytest.raises(Exception, match="dead-letter topic 'no-dlq' does not exist"):
        run_available(spark_eos_session, flow, dead_letter_topic="no-dlq")
