"""Rows that Kafka refuses for what they are become dead letters; nothing else does."""

from collections import Counter
from typing import Any

import pytest
from kafka.protocol.producer import InitProducerIdRequest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos._batch.batch_report import BatchReport
from support.dead_letters import headers_of, letter_topic
from support.flow import Flow
from support.proxy import KafkaProxy
from support.queries import run_available, slot_holders
from support.topic_limits import set_limit, small_topic


def case(name: str, then: Any, otherwise: Any = None) -> Column:
    """A column's value in rows made of records with that value."""
    return F.when(F.col("value") == F.lit(name).cast("binary"), then).otherwise(otherwise)


def run(spark: SparkSession, flow: Flow, transform: Any, **options: Any) -> tuple[BatchReport, str]:
    letters = letter_topic(flow)
    (report,) = run_available(spark, flow, transform, dead_letter_topic=letters, **options)
    return report, letters


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
    report, letters = run(spark_eos_session, flow, transform, max_block_ms=3_000)
    assert flow.values(small) == ["good"]
    assert flow.values() == ["last"]
    found = flow.written(letters)
    # The source's records as they came, in their order.
    assert [(m.value() or b"").decode() for m in found] == bad
    assert [headers_of(m)["trace"] for m in found] == ["t"] * len(bad)
    assert [headers_of(m)["__dlq.errors.offset"] for m in found] == [
        str(n + 1) for n in range(len(bad))
    ]
    told = [headers_of(m)["__dlq.errors.reason"] for m in found]
    assert told == [
        *["too_large"] * 3,
        *["unknown_topic"] * 2,
        "unknown_partition",
        "invalid_header",
        "invalid_record",
    ]
    assert report.dead_letters == dict(Counter(told))
    assert (report.attempts, report.rows_written) == (1, 2)
    assert flow.committed()[0] == len(bad) + 2
    assert flow.open_transactions() == []


@pytest.mark.slow
def test_what_just_fits_and_what_does_not(flow: Flow, spark_eos_session: SparkSession) -> None:
    small = f"small-{flow.name}"
    flow.broker.create_topic(small, 1, {"max.message.bytes": "10000"})
    flow.produce(["x" * (9_000 + 20 * n) for n in range(100)], partition=0)
    report, letters = run(
        spark_eos_session,
        flow,
        lambda f: f.select("source", "value", F.lit(small).alias("topic")),
    )
    sizes = [len(m.value() or b"") for m in flow.written(small)]
    refused = [len(m.value() or b"") for m in flow.written(letters)]
    assert sizes == [9_000 + 20 * n for n in range(len(sizes))]
    assert sizes + refused == [9_000 + 20 * n for n in range(100)]
    # 61 bytes of the batch's header, and some of the record's.
    assert max(sizes) + 61 + 5 < 10_000 < min(refused) + 61 + 15
    assert (report.attempts, report.dead_letters) == (1, {"too_large": len(refused)})


@pytest.mark.slow
def test_a_thousand_of_a_hundred_thousand(
    proxied_flow: Flow, proxy: KafkaProxy, spark_eos_session: SparkSession
) -> None:
    flow, small = proxied_flow, f"small-{proxied_flow.name}"
    flow.broker.create_topic(small, 1, {"max.message.bytes": "10000"})
    flow.produce(range(100_000))
    number = F.col("value").cast("string").cast("int")
    # A thousand different sizes.
    size = F.when(number % 100 == 7, 20_000 + number / 100).otherwise(5).cast("int")
    report, letters = run(
        spark_eos_session,
        flow,
        lambda f: f.select(
            "source",
            F.rpad(F.col("value").cast("string"), size, " ").alias("value"),
            F.lit(small).alias("topic"),
        ),
    )
    refused = [n for n in range(100_000) if n % 100 == 7]
    assert sorted(int(m.value() or b"") for m in flow.written(letters)) == refused
    assert len(flow.written(small)) == 99_000
    assert (report.attempts, report.dead_letters) == (1, {"too_large": 1_000})
    # Of the checks at the start and of each worker; none follows a transaction that is given up.
    begun = proxy.count(InitProducerIdRequest)
    assert begun < 16, begun


@pytest.mark.slow
@pytest.mark.proves("row-becomes-dead-letter")
def test_no_more_than_allowed_are_written(flow: Flow, spark_eos_session: SparkSession) -> None:
    small = f"small-{flow.name}"
    flow.broker.create_topic(small, 1, {"max.message.bytes": "10000"})
    flow.produce(["x" * 20_000] * 40, partition=0)
    with pytest.raises(StreamingQueryException, match=r"dead_letters\.limit=5 allows 5"):
        run(
            spark_eos_session,
            flow,
            lambda f: f.select("source", "value", F.lit(small).alias("topic")),
            max_dead_letters=5,
        )
    assert flow.written(f"dlq-{flow.name}") == []
    assert flow.committed()[0] == 0
    assert flow.open_transactions() == []


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [4_102_444_800, 1_000])
def test_timestamps_out_of_bounds(
    seconds: int, flow: Flow, spark_eos_session: SparkSession
) -> None:
    bounded = f"bounded-{flow.name}"
    flow.broker.create_topic(bounded, 1, {"message.timestamp.before.max.ms": "86400000"})
    flow.produce(["a", "bad", "same", "same", "z"], partition=0)
    # Of two records with the same content, one has a timestamp that is refused.
    at = F.when((F.col("value") == F.lit(b"bad")) | (F.col("offset") == 2), F.lit(seconds))
    report, letters = run(
        spark_eos_session,
        flow,
        lambda f: f.select(
            "source",
            "value",
            F.lit(bounded).alias("topic"),
            F.timestamp_seconds(at).alias("timestamp"),
        ),
    )
    assert flow.values(bounded) == ["a", "same", "z"]
    assert [headers_of(m)["__dlq.errors.offset"] for m in flow.written(letters)] == ["1", "2"]
    assert report.dead_letters == {"invalid_record": 2}


@pytest.mark.slow
def test_a_staged_row_whose_timestamp_is_refused(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(["a"], partition=0)
    report, letters = run(
        spark_eos_session,
        flow,
        lambda f: f.select("value", F.timestamp_seconds(F.lit(4_102_444_800)).alias("timestamp")),
        delivery="staged",
        progress_topic=f"progress-{flow.name}",
        progress_partitions=3,
    )
    assert report.dead_letters == {"invalid_record": 1}
    assert flow.values(letters) == ["a"]


@pytest.mark.slow
def test_an_open_transaction_does_not_wait_for_missing_topics(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce([*["good"] * 1_500, "nowhere", "place", *["good"] * 10], partition=0)
    report, letters = run(
        spark_eos_session,
        flow,
        lambda f: f.select(
            "source",
            "value",
            case("nowhere", "nowhere").alias("topic"),
            case("place", 17).cast("int").alias("partition"),
        ),
        max_block_ms=3_000,
        transaction_timeout_ms=3_000,
        max_transaction_ms=1_000,
    )
    assert (report.attempts, report.rows_written) == (1, 1_510)
    assert report.dead_letters == {"unknown_topic": 1, "unknown_partition": 1}
    assert len(flow.written(letters)) == 2


@pytest.mark.slow
def test_many_small_records_for_a_topic_with_a_low_limit(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    small = small_topic(flow)
    flow.produce([*range(20_000)], partition=0)
    (report,) = run_available(
        spark_eos_session,
        flow,
        lambda f: f.select(
            "source", F.rpad(F.col("value").cast("string"), 100, " ").alias("value")
        ),
        topic=small,
    )
    assert (report.attempts, report.rows_written) == (1, 20_000)
    assert [int(value) for value in flow.values(small)] == [*range(20_000)]


@pytest.mark.slow
def test_a_limit_that_is_lowered_between_batches(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    """The batch is repeated with smaller batches of records."""
    flow.produce([*range(3_000)], partition=0)

    workers: set[int] = set()

    def lower(report: BatchReport) -> None:
        # Spark takes those in turn that other tests have left.
        if report.batch_id <= 5:
            workers.update(slot_holders(flow.worker_directory).values())
        if report.batch_id == 5:
            set_limit(flow, flow.target, 2_000)

    reports = run_available(
        spark_eos_session,
        flow,
        read={"options": {"maxOffsetsPerTrigger": "250"}},
        on_batch=lower,
    )
    attempts = [report.attempts for report in reports]
    assert set(attempts[:6]) == {1}
    assert set(attempts[6:]) == {1, 2}
    # Each worker that knew the old limit, once.
    assert sum(attempts) <= len(attempts) + len(workers)
    assert sorted(map(int, flow.values())) == [*range(3_000)]
    assert flow.committed()[0] == 3_000


@pytest.mark.slow
def test_a_letter_that_is_too_large_as_well_goes_without_its_value(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    letters = letter_topic(flow, {"max.message.bytes": "5000"})
    flow.produce(["x" * 9_000, "y" * 100], partition=0, key=b"k")
    (report,) = run_available(
        spark_eos_session,
        flow,
        lambda f: f.select("source", "key", "value", F.lit("no order").alias("error")),
        dead_letter_topic=letters,
    )
    first, second = flow.written(letters)
    assert (first.key(), first.value(), second.value()) == (b"k", None, b"y" * 100)
    assert headers_of(first)["__dlq.errors.omitted"] == "value of 9000 bytes"
    assert "__dlq.errors.omitted" not in headers_of(second)
    assert report.dead_letters == {"error": 2}


def test_a_topic_for_dead_letters_that_is_missing(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(["good"], partition=0)
    with pytest.raises(Exception, match="dead-letter topic 'no-dlq' does not exist"):
        run_available(spark_eos_session, flow, dead_letter_topic="no-dlq")
