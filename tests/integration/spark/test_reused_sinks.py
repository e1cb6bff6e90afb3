"""One sink object over several starts, reads and sessions, as in a notebook."""

import json
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos import ExactlyOnceSink, original_records
from spark_eos.errors import UnsupportedPipelineError
from support.flow import Flow
from support.groups import delete_group
from support.queries import relay, run_available
from support.sinks import flat

_TWO_SESSIONS = """
import json, sys
from spark_eos import ExactlyOnceSink
from spark_eos.testing import process_available, produce, spark_session
from support.queries import relay
from support.sinks import arguments

settings = json.loads(sys.argv[1])
source = settings.pop("source")
sink = ExactlyOnceSink(**arguments(**settings))
for number in range(2):
    with spark_session(quick_start=True) as spark:
        rows = [{"value": str(2 * number + n), "partition": n} for n in range(2)]
        produce(spark, settings["kafka"], source, rows)
        process_available(sink.write(relay(sink.read(spark, subscribe=source))))
sink.close()
"""


@pytest.mark.slow
def test_a_sink_outlives_its_session(flow: Flow) -> None:
    settings = {**flat(flow.options()), "source": flow.source}
    subprocess.run(
        [sys.executable, "-c", _TWO_SESSIONS, json.dumps(settings)],
        cwd=Path(__file__).parents[2],
        check=True,
        timeout=240,
    )
    assert sorted(flow.values()) == ["0", "1", "2", "3"]


@pytest.mark.slow
def test_reads_that_no_query_uses_do_not_count(flow: Flow, spark_eos_session: SparkSession) -> None:
    other = f"other-{flow.name}"
    flow.broker.create_topic(other, 1)
    flow.produce(range(4))
    with closing(ExactlyOnceSink(**flow.options())) as sink:
        sink.read(spark_eos_session, subscribe=other, starting_offsets="latest")
        flow.broker.delete_topic(other)
        writer = sink.write(relay(sink.read(spark_eos_session, subscribe=flow.source)))
        assert writer.trigger(availableNow=True).start().awaitTermination(60)
    assert len(flow.values()) == 4


@pytest.mark.slow
def test_a_batch_of_an_earlier_start_does_not_count(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    calls = [True, False]

    def batch(rows: DataFrame, batch_id: int) -> None:
        if calls.pop(0):
            sink(rows, batch_id)

    with closing(ExactlyOnceSink(**flow.options())) as sink:

        def start() -> StreamingQuery:
            flow.produce(range(4))
            frame = sink.read(spark_eos_session, subscribe=flow.source).select("source", "value")
            return sink.write(frame).foreachBatch(batch).trigger(availableNow=True).start()

        assert start().awaitTermination(60)
        # The next batch has the same number.
        shutil.rmtree(flow.checkpoint)
        with pytest.raises(StreamingQueryException, match="batch 0 is not written"):
            start().awaitTermination(60)


@pytest.mark.slow
def test_a_sink_created_again_under_the_same_name(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(4))
    first = own = ExactlyOnceSink(**flow.options())

    def batch(rows: DataFrame, batch_id: int) -> None:
        own(rows, batch_id)

    frame = relay(own.read(spark_eos_session, subscribe=flow.source))
    writer = own.write(frame).foreachBatch(batch)
    own = ExactlyOnceSink(**flow.options())
    named = pytest.raises(StreamingQueryException, match="another sink under the name of yours")
    with closing(first), closing(own), named:
        writer.trigger(availableNow=True).start().awaitTermination(60)
    assert flow.values() == []


@pytest.mark.slow
def test_a_batch_that_was_begun_is_known_without_a_clock(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    """Its driver's clock may have been fast; then only the batch's number says so."""
    for _ in range(2):
        flow.produce(range(4))
        run_available(spark_eos_session, flow)
    checkpoint = Path(flow.checkpoint)
    (checkpoint / "commits" / "1").unlink()
    for crc in (checkpoint / "commits" / ".1.crc", checkpoint / "offsets" / ".1.crc"):
        crc.unlink(missing_ok=True)
    log = checkpoint / "offsets" / "1"
    version, metadata, *ends = log.read_text(encoding="utf-8").split("\n")
    later = {**json.loads(metadata), "batchTimestampMs": 2**42}
    log.write_text("\n".join([version, json.dumps(later), *ends]), encoding="utf-8")
    delete_group(flow.bootstrap_servers, flow.group_id)
    with pytest.raises(StreamingQueryException, match=r"batch 1, from .* was begun"):
        run_available(spark_eos_session, flow)
    assert len(flow.values()) == 8


def test_dead_letters_are_restored_whatever_the_case_of_their_columns(
    spark_eos_session: SparkSession,
) -> None:
    letters = spark_eos_session.createDataFrame(
        [(bytearray(b"k"), bytearray(b"v"), None)],
        "KEY binary, Value binary, HEADERS array<struct<key: string, value: binary>>",
    ).withColumn("Timestamp", F.current_timestamp())
    (row,) = original_records(letters).collect()
    assert (row.key, row.value) == (b"k", b"v")
    with pytest.raises(UnsupportedPipelineError, match="have no column key"):
        original_records(letters.drop("KEY"))
