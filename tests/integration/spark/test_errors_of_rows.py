"""What rows hold moves no cursor when a query ends with an error that quotes it."""

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from support.dead_letters import letter_topic
from support.flow import Flow
from support.queries import run_available

MOVES = "\x1b[2J\x9b\a\r\u202e"


def _unshown(text: str) -> set[str]:
    return {one for one in text if not one.isprintable()} - {"\n", "\t"}


@pytest.mark.slow
def test_an_error_of_a_row(flow: Flow, spark_eos_session: SparkSession) -> None:
    def judged(frame: DataFrame) -> DataFrame:
        return frame.select("source", "value", F.col("value").cast("string").alias("error"))

    flow.produce([f"{MOVES}bad\nError: {n % 2}" for n in range(6)], partition=0)
    with pytest.raises(StreamingQueryException) as caught:
        run_available(
            spark_eos_session,
            flow,
            judged,
            dead_letter_topic=letter_topic(flow),
            max_dead_letters=1,
        )
    assert r"times: \x1b[2J\x9b\x07\r\u202ebad\nError: 0" in str(caught.value)
    assert _unshown(str(caught.value)) == set()


def test_a_topic_of_a_row(flow: Flow, spark_eos_session: SparkSession) -> None:
    def routed(frame: DataFrame) -> DataFrame:
        return frame.select("source", "value", F.col("value").cast("string").alias("topic"))

    flow.produce([f"{MOVES}payments"], partition=0)
    with pytest.raises(StreamingQueryException, match="payments") as caught:
        run_available(spark_eos_session, flow, routed, max_block_ms=1_000)
    assert _unshown(str(caught.value)) == set()
