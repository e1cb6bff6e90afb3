"""Rows that can't be written go to the dead-letter topic in the same transaction as other rows."""

import time
from typing import Any

import pytest
from kafka import KafkaProducer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import guarded
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.dead_letter_topic import DeadLetterTopic
from support.dead_letters import create_dead_letter_topic, headers_of, replay
from support.flow import Flow
from support.mirroring import MirroredFlow
from support.queries import run_available
from support.staging import failing_once_staged

# Younger than brokers keep records.
AT = time.time_ns() // 1_000_000 - 60_000


def with_error(frame: DataFrame) -> DataFrame:
    """Refuses values that begin with "bad"."""
    text = F.col("value").cast("string")
    error = F.when(text.startswith("bad"), F.concat(F.lit("it is "), text))
    return frame.select("source", "key", F.upper(text).alias("value"), error.alias("error"))


@pytest.fixture
def dlq(flow: Flow) -> str:
    """A dead-letter topic of three partitions."""
    return create_dead_letter_topic(flow)


def test_rows_with_an_error_become_dead_letters(
    flow: Flow, dlq: str, spark_eos_session: SparkSession
) -> None:
    flow.produce(
        ["a", "bad b", "c", "bad d"],
        partition=1,
        key=b"k",
        headers=[("trace", b"t1")],
        timestamp=AT,
    )
    began = time.time_ns() // 1_000_000
    (report,) = run_available(spark_eos_session, flow, with_error, dead_letter_topic=dlq)
    assert flow.merged_values() == ["A", "C"]
    found = flow.written(dlq)
    assert [(m.value(), m.key(), m.partition()) for m in found] == [
        (b"bad b", b"k", 1),
        (b"bad d", b"k", 1),
    ]
    # Written now, whenever its record was.
    assert min(m.timestamp()[1] for m in found) >= began > AT
    assert headers_of(found[1]) == {
        "trace": "t1",
        "__dlq.errors.topic": flow.source,
        "__dlq.errors.partition": "1",
        "__dlq.errors.offset": "3",
        "__dlq.errors.group": flow.group_id,
        "__dlq.errors.message": "it is bad d",
        "__dlq.errors.reason": "error",
        "__dlq.errors.timestamp": str(AT),
        "__dlq.errors.format": "2",
    }
    assert (report.rows_written, report.dead_letters) == (2, {"error": 2})
    # Also of the partition without records: later its absence means that it was deleted.
    assert flow.committed() == {0: 0, 1: 4}


@pytest.mark.slow
def test_timestamps_up_to_1970_are_kept_and_in_dead_letters(
    flow: Flow, dlq: str, spark_eos_session: SparkSession
) -> None:
    # confluent-kafka can't write a timestamp of 0 either.
    producer = KafkaProducer(bootstrap_servers=flow.bootstrap_servers)
    for milliseconds in (0, -1, -1_500):
        for value in (b"a", b"bad b"):
            producer.send(flow.source, value, partition=0, timestamp_ms=milliseconds).get(60)
    producer.close()

    def timed(frame: DataFrame) -> DataFrame:
        return with_error(frame).withColumn("timestamp", F.col("source.timestamp"))

    (report,) = run_available(spark_eos_session, flow, timed, dead_letter_topic=dlq)
    assert [m.timestamp()[1] for m in flow.written()] == [1, -1, -1_500]
    found = flow.written(dlq)
    assert [headers_of(m)["__dlq.errors.timestamp"] for m in found] == ["0", "-1", "-1500"]
    assert report.timestamps_adjusted == 1


@pytest.mark.slow
def test_without_the_topic_an_error_column_is_ignored(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(["a", "bad b"], partition=0)
    (report,) = run_available(spark_eos_session, flow, with_error)
    assert flow.merged_values() == ["A", "BAD B"]
    assert (report.rows_written, report.dead_letters) == (2, {})


def fails(spark: SparkSession, flow: Flow, words: str, **options: Any) -> None:
    with pytest.raises(StreamingQueryException, match=words):
        run_available(spark, flow, with_error, **options)
    assert flow.open_transactions() == []


@pytest.mark.slow
def test_too_many_of_them_end_the_query(
    flow: Flow, dlq: str, spark_eos_session: SparkSession
) -> None:
    flow.produce([f"bad {n % 2}" for n in range(12)], partition=0)
    flow.produce(["a", "bad 0"], partition=1)
    fails(
        spark_eos_session,
        flow,
        r"at least 1\d of 14 records are dead letters, and dead_letters\.limit=9 allows 9.*"
        r"Most frequent: 1\d times: it is bad 0\. .*raise dead_letters\.limit",
        dead_letter_topic=dlq,
        max_dead_letters=9,
        max_transaction_records=3,
    )
    # Never more than allowed, and nothing that comes after them.
    written = len(flow.written(dlq))
    assert written <= 9
    assert sum(flow.committed().values()) == written + len(flow.values())
    (report,) = run_available(
        spark_eos_session, flow, with_error, dead_letter_topic=dlq, max_dead_letters=13
    )
    assert report.dead_letters == {"error": 13 - written}
    assert len(flow.written(dlq)) == 13
    assert flow.values() == ["A"]


@pytest.mark.slow
def test_each_start_may_write_as_many_again(
    flow: Flow, dlq: str, spark_eos_session: SparkSession
) -> None:
    flow.produce([f"bad {n}" for n in range(10)], partition=0)
    limit: dict[str, Any] = {
        "dead_letter_topic": dlq,
        "max_dead_letters": 4,
        "max_transaction_records": 1,
    }
    for written in (4, 8):
        fails(spark_eos_session, flow, "dead_letters.limit=4 allows 4.*4 of them are in", **limit)
        assert len(flow.written(dlq)) == written
    (report,) = run_available(spark_eos_session, flow, with_error, **limit)
    assert report.dead_letters == {"error": 2}
    assert [m.value() for m in flow.written(dlq)] == [b"bad %d" % n for n in range(10)]


ONE_ERROR = r"all {} rows of the batch are dead letters with one error: {} times: it is bad 0\. "


@pytest.mark.slow
@pytest.mark.parametrize(
    "delivery",
    [
        "direct",
        pytest.param("mirrored", marks=pytest.mark.slow),
        pytest.param("staged", marks=pytest.mark.slow),
    ],
)
def test_a_batch_of_one_error_ends_the_query_before_writing(
    delivery: str, request: pytest.FixtureRequest, spark_eos_session: SparkSession
) -> None:
    flow: Flow = request.getfixturevalue("mirrored_flow" if delivery == "mirrored" else "flow")
    dlq = create_dead_letter_topic(flow)
    # Their texts differ in what is the row's own.
    flow.produce([f"bad {n}" for n in range(6)], partition=0)
    options: dict[str, Any] = {"dead_letter_topic": dlq}
    if delivery == "staged":
        options |= {"delivery": delivery, "progress_topic": f"progress-{flow.name}"}
        options["progress_partitions"] = 3
    for _ in range(2):
        fails(
            spark_eos_session,
            flow,
            ONE_ERROR.format(6, 6) + "The first is .*None of them",
            **options,
        )
        assert flow.written(dlq) == []
    # The operator's word.
    (report,) = run_available(spark_eos_session, flow, with_error, **options, max_dead_letters=1.0)
    assert (report.delivery, report.dead_letters) == (delivery, {"error": 6})
    assert report.attempts == 1
    assert len(flow.written(dlq)) == 6


@pytest.mark.slow
@pytest.mark.parametrize(("records", "written"), [(100, "None"), (8, "20")])
def test_one_error_that_only_kafka_reports(
    flow: Flow, dlq: str, spark_eos_session: SparkSession, records: int, written: str
) -> None:
    flow.produce(["fine"] * 20, partition=0)
    # Rows of later transactions are not known to be dead letters before they are handed over.
    with pytest.raises(
        StreamingQueryException, match=rf"all 20 rows of the batch .*{written} of them are in"
    ):
        run_available(
            spark_eos_session,
            flow,
            lambda f: f.select("source", "value", F.lit("nowhere").alias("topic")),
            dead_letter_topic=dlq,
            max_block_ms=300,
            max_transaction_records=records,
        )
    assert len(flow.written(dlq)) == (20 if records == 8 else 0)


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["flow", "mirrored_flow"])
def test_the_share_is_of_the_whole_batch_when_it_is_repeated(
    delivery: str, request: pytest.FixtureRequest, spark_eos_session: SparkSession
) -> None:
    flow: Flow = request.getfixturevalue(delivery)
    dlq = create_dead_letter_topic(flow)
    flow.produce(["good"] * 1_500, partition=0)
    flow.produce([f"bad {n}" if n % 9 == 0 else n for n in range(1_048)], partition=1)
    options: dict[str, Any] = {"dead_letter_topic": dlq}
    # Ends in mid-batch, with one of the two partitions written.
    fails(spark_eos_session, flow, "allows 0", **options, max_dead_letters=0)
    assert len(flow.values()) == 1_500
    # More than a tenth of the remaining rows are dead letters, but not of the whole batch.
    (report,) = run_available(spark_eos_session, flow, with_error, **options)
    assert report.dead_letters == {"error": 117}
    assert len(flow.values()) == 1_500 + 1_048 - 117


@pytest.mark.slow
@pytest.mark.parametrize(
    ("style", "names"),
    [
        ("streams", {"__streams.errors.message", "__streams.errors.exception"}),
        ("connect", {"__connect.errors.exception.message", "__connect.errors.connector.name"}),
    ],
)
def test_headers_in_other_styles(
    flow: Flow, dlq: str, spark_eos_session: SparkSession, style: str, names: set[str]
) -> None:
    flow.produce(["bad"], partition=0)
    texts = {"message": "no order", "exception": "ValueError", "stacktrace": "line 1"}
    error = F.struct(*[F.lit(text).alias(name) for name, text in texts.items()])
    run_available(
        spark_eos_session,
        flow,
        lambda f: f.select("source", "value", error.alias("error")),
        dead_letter_topic=dlq,
        dead_letter_headers=style,
        dead_letter_stacktrace=style == "streams",
    )
    (found,) = map(headers_of, flow.written(dlq))
    assert names <= found.keys()
    assert all(name.startswith(f"__{style}.errors.") for name in found)
    assert ("line 1" in found.values()) == (style == "streams")
    assert found[f"__{style}.errors.reason"] == "exception"


@pytest.mark.slow
def test_a_record_with_dead_letter_headers_is_replayed_unchanged(
    flow: Flow, dlq: str, spark_eos_session: SparkSession
) -> None:
    other = f"other-{flow.name}"
    flow.broker.create_topic(other, 2)
    # It looks like dead letters of others: of a style before and of one after this query's own.
    fields = {
        "topic": other,
        "partition": "1",
        "offset": "7",
        "reason": "too_large",
        "omitted": "x",
    }
    brought = [
        *((f"__connect.errors.{name}", text.encode()) for name, text in fields.items()),
        ("trace", b"t"),
        *((f"__dlq.errors.{name}", text.encode()) for name, text in fields.items()),
    ]
    flow.produce(["bad"], partition=0, headers=brought)
    run_available(
        spark_eos_session,
        flow,
        with_error,
        dead_letter_topic=dlq,
        dead_letter_headers="streams",
    )
    assert len(flow.written(dlq)) == 1
    topic = DeadLetterTopic(ClientSettings(flow.kafka), dlq, 20)
    (dead_letter,) = topic.read()
    assert (dead_letter.source, dead_letter.reason) == ((flow.source, 0), "error")
    assert "omitted" not in dead_letter.error_headers
    assert replay(flow).exit_code == 0
    assert [m.headers() for m in flow.written(flow.source)] == [brought, brought]
    assert flow.written(other) == []


@pytest.mark.slow
@pytest.mark.parametrize("style", ["dlq", "streams", "connect"])
def test_dead_letters_of_another_clusters_records_say_so(
    mirrored_flow: MirroredFlow, spark_eos_session: SparkSession, style: str
) -> None:
    flow = mirrored_flow
    dlq = create_dead_letter_topic(flow)
    # As a copy has it: the output has the name of the source.
    flow.broker.create_topic(flow.source, 2)
    flow.produce(["a", "bad b"], partition=1, key=b"k")
    (report,) = run_available(
        spark_eos_session,
        flow,
        lambda f: with_error(f).withColumn("topic", F.lit(flow.source)),
        dead_letter_topic=dlq,
        dead_letter_headers=style,
    )
    assert (report.delivery, report.dead_letters) == ("mirrored", {"error": 1})
    (dead_letter,) = flow.written(dlq)
    assert headers_of(dead_letter)[f"__{style}.errors.cluster"] == flow.identity[0] != ""
    # Its source is not the topic of that name here.
    assert replay(flow).exit_code == 0
    assert flow.values(flow.source) == ["A"]
    assert replay(flow, "--all", "--target", flow.target, group="all").exit_code == 0
    assert flow.values() == ["bad b"]


@pytest.mark.slow
def test_staged_rows_have_no_position(
    flow: Flow, dlq: str, spark_eos_session: SparkSession
) -> None:
    flow.produce(["a", "bad b", "c"], partition=0, key=b"k")
    (report,) = run_available(
        spark_eos_session,
        flow,
        lambda f: with_error(f).drop("source"),
        delivery="staged",
        progress_topic=f"progress-{flow.name}",
        progress_partitions=3,
        dead_letter_topic=dlq,
    )
    assert sorted(flow.values()) == ["A", "C"]
    (found,) = flow.written(dlq)
    assert (found.key(), found.value()) == (b"k", b"BAD B")
    assert headers_of(found) == {
        "__dlq.errors.group": flow.group_id,
        "__dlq.errors.message": "it is bad b",
        "__dlq.errors.reason": "error",
        "__dlq.errors.format": "2",
    }
    assert (report.delivery, report.rows_written, report.dead_letters) == (
        "staged",
        2,
        {"error": 1},
    )


@pytest.mark.slow
def test_a_copy_with_bad_rows_needs_the_dead_letter_topic(
    flow: Flow, dlq: str, spark_eos_session: SparkSession
) -> None:
    flow.produce(["a", "bad b"], partition=0)

    def run(**dead_letters: Any) -> None:
        run_available(
            spark_eos_session,
            flow,
            lambda f: with_error(f).drop("source"),
            delivery="staged",
            progress_topic=f"progress-{flow.name}",
            **dead_letters,
        )

    with failing_once_staged():
        run(dead_letter_topic=dlq)
    with pytest.raises(StreamingQueryException, match="batch 0 was staged with dead_letters"):
        run()
    assert flow.values() == []
    run(dead_letter_topic=dlq)
    assert flow.values() == ["A"]
    assert len(flow.written(dlq)) == 1


@pytest.mark.slow
def test_staged_rows_that_still_carry_their_record_keep_it(
    flow: Flow, dlq: str, spark_eos_session: SparkSession
) -> None:
    flow.produce(["a", "bad b"], partition=0, key=b"k", headers=[("trace", b"t1")], timestamp=AT)

    def parse(row: dict[str, Any]) -> dict[str, Any]:
        if row["value"].startswith(b"bad"):
            raise ValueError("not to be parsed")
        return {"value": row["value"]}

    (report,) = run_available(
        spark_eos_session,
        flow,
        lambda f: guarded(f, parse, "value binary", errors="column").repartition(2),
        progress_topic=f"progress-{flow.name}",
        progress_partitions=3,
        dead_letter_topic=dlq,
    )
    assert (report.delivery, report.dead_letters) == ("staged", {"exception": 1})
    assert flow.values() == ["a"]
    # What the function was given, since it has made nothing of it.
    (found,) = flow.written(dlq)
    assert (found.key(), found.value()) == (b"k", b"bad b")
    headers = headers_of(found)
    assert (headers["trace"], headers["__dlq.errors.timestamp"]) == ("t1", str(AT))
