"""Dead letters of ``format("kafka-eos")``."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from support.data_sources import end_keepers, write_available
from support.dead_letters import headers_of, letter_topic
from support.flow import Flow
from support.versions import needs_data_sources

pytestmark = [pytest.mark.slow, needs_data_sources]


@pytest.fixture
def flow(new_flow: Callable[..., Flow]) -> Iterator[Flow]:
    """A flow of the test's own, whose keeper ends with it."""
    flow = new_flow()
    yield flow
    end_keepers(flow)


def judged(frame: DataFrame) -> DataFrame:
    """Judges values that begin with "bad", and sends some to a topic that does not exist."""
    text = F.col("value").cast("string")
    return frame.select(
        "source",
        F.upper(text).alias("value"),
        F.when(text.startswith("bad"), "it is bad").alias("error"),
        F.when(text == "lost", "nowhere").alias("topic"),
    )


def test_dead_letters_of_a_data_source(flow: Flow, spark_eos_session: SparkSession) -> None:
    letters = letter_topic(flow)
    flow.produce(["a", "bad b", "lost", "c"], partition=0, headers=[("trace", b"t")])
    write_available(
        spark_eos_session,
        flow,
        judged,
        reading={"carry_records": True},
        deadLetterTopic=letters,
        maxDeadLetters="2",
        maxBlockMs="300",
    )
    assert flow.values() == ["A", "C"]
    found = flow.written(letters)
    assert [m.value() for m in found] == [b"bad b", b"lost"]
    assert [headers_of(m)["__dlq.errors.reason"] for m in found] == ["error", "unknown_topic"]
    assert headers_of(found[0])["trace"] == "t"
    assert flow.committed()[0] == 4


def test_too_many_end_the_query(flow: Flow, spark_eos_session: SparkSession) -> None:
    letters = letter_topic(flow)
    # Neither task has too many; both together have.
    for partition in (0, 1):
        flow.produce(["bad"] * 3, partition=partition)
    with pytest.raises(
        StreamingQueryException, match=r"6 of 6 records are dead letters, and maxDeadLetters=5"
    ):
        write_available(
            spark_eos_session, flow, judged, deadLetterTopic=letters, maxDeadLetters="5"
        )


def failed(frame: DataFrame) -> DataFrame:
    """Judges every value, with the trace of an exception."""
    texts = {"message": "no order", "exception": "ValueError", "stacktrace": "line 1"}
    error = F.struct(*[F.lit(text).alias(name) for name, text in texts.items()])
    return frame.select("source", "value", error.alias("error"))


@pytest.mark.parametrize("chosen", [{}, {"deadLetterStacktrace": "true"}])
def test_stack_traces_are_only_where_they_are_wanted(
    flow: Flow, spark_eos_session: SparkSession, chosen: dict[str, Any]
) -> None:
    letters = letter_topic(flow)
    flow.produce(["bad"])
    write_available(spark_eos_session, flow, failed, deadLetterTopic=letters, **chosen)
    (found,) = map(headers_of, flow.written(letters))
    assert found["__dlq.errors.exception"] == "ValueError"
    assert found.get("__dlq.errors.stacktrace") == ("line 1" if chosen else None)


def test_nothing_but_one_error_ends_the_query(flow: Flow, spark_eos_session: SparkSession) -> None:
    letters = letter_topic(flow)
    flow.produce(["bad"] * 6, partition=0)
    # There are no further jobs, so what the tasks have found out comes too late to hold them back.
    words = r"all 6 rows of the batch are .* one error.*6 of them are in.*maxDeadLetters=1\.0"
    with pytest.raises(StreamingQueryException, match=words):
        write_available(spark_eos_session, flow, judged, deadLetterTopic=letters)
    assert len(flow.written(letters)) == 6
