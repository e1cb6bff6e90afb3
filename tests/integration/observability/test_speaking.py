"""A running query's messages on stderr or in the log, but never in both."""

import logging
import re
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_eos import BatchReport, ExactlyOnceSink, print_batch
from support.apis import Queries
from support.connect_server import ConnectService
from support.flow import Flow
from support.queries import Transform, relay, spoken
from support.staging import record, repartitioned

_NARROW = "its rows stay in their source partitions"


@pytest.fixture
def said(flow: Flow, spark_eos_session: SparkSession) -> Callable[..., list[str]]:
    """Runs the flow's query once; returns its messages."""

    def run(transform: Transform = relay, **more: Any) -> list[str]:
        settings = {**flow.options(), **more.pop("sink", {})}
        return spoken(spark_eos_session, settings, flow.source, transform, **more)

    return run


@pytest.mark.slow
def test_a_direct_query(flow: Flow, said: Callable[..., list[str]]) -> None:
    begins = f"spark-eos: group {flow.group_id}: delivery=direct, since {_NARROW}; "
    flow.produce(range(1_200))
    first, batch = said(sink={"on_batch": print_batch})
    assert first == f"{begins}begins at earliest (starting_offsets); up to 1,200 records wait"
    line = rf"spark-eos: group {flow.group_id}, batch 0: 1,200 rows in [\d.]+ s"
    assert re.fullmatch(line, batch)
    flow.produce(range(7))
    assert said() == [f"{begins}continues from the group's offsets; up to 7 records wait"]
    assert said() == [f"{begins}continues from the group's offsets; no records wait"]


@pytest.mark.slow
def test_a_new_group_that_begins_at_the_end(flow: Flow, said: Callable[..., list[str]]) -> None:
    flow.produce(range(5))
    (line,) = said(starting_offsets="latest")
    assert line.endswith("; begins at latest (starting_offsets); no records wait")


@pytest.mark.slow
def test_a_group_that_has_offsets_of_other_topics(
    new_flow: Callable[..., Flow], spark_eos_session: SparkSession
) -> None:
    flow, other = new_flow(), new_flow()
    flow.produce(range(2))
    other.produce(range(5))
    seen: list[BatchReport] = []
    spoken(spark_eos_session, {**flow.options(), "on_batch": seen.append}, flow.source, relay)
    flow.checkpoint += "-moved"
    moved = {**flow.options(), "moved_from": seen[0].query_id}
    (line,) = spoken(spark_eos_session, moved, other.source, relay, starting_offsets="latest")
    assert line.endswith(
        "; begins at earliest, since the group has offsets of other topics; up to 5 records wait"
    )
    assert len(flow.values()) == 7


@pytest.mark.slow
def test_a_staged_query(flow: Flow, said: Callable[..., list[str]]) -> None:
    flow.produce(map(record, range(10)))
    (line,) = said(repartitioned)
    begins = f"spark-eos: group {flow.group_id}: delivery=staged, since the query has a shuffle"
    assert line.startswith(begins)
    assert line.endswith(
        "in its plan); begins at earliest (starting_offsets); up to 10 records wait"
    )
    flow.produce(map(record, range(3)))
    (line,) = said(repartitioned)
    assert line.endswith("; continues from its checkpoint; up to 3 records wait")
    (line,) = said(relay)
    assert "delivery=staged, since its checkpoint was begun with it; " in line
    assert line.endswith("; continues from its checkpoint; no records wait")


@pytest.mark.slow
def test_a_mirrored_query(mirrored_flow: Flow, spark_eos_session: SparkSession) -> None:
    flow = mirrored_flow
    why = f"delivery=mirrored, since {_NARROW}, in another cluster"
    for count, where in (
        (4, "begins at earliest (starting_offsets)"),
        (2, "continues from the group's offsets"),
    ):
        flow.produce(range(count))
        said = spoken(spark_eos_session, flow.options(), flow.source, relay)
        waiting = f"up to {count} records wait"
        assert said == [f"spark-eos: group {flow.group_id}: {why}; {where}; {waiting}"]


def test_a_source_that_the_sink_does_not_read(
    flow: Flow, spark_eos_session: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """The query's lag is unknown."""
    caplog.set_level(logging.INFO, "spark_eos")
    rows = spark_eos_session.readStream.format("rate").load().selectExpr("string(value) AS value")
    with closing(ExactlyOnceSink(**flow.options())) as sink:
        query = sink.write(rows).trigger(availableNow=True).start()
        query.awaitTermination()
    (line,) = [r.getMessage() for r in caplog.records if getattr(r, "event", "") == "start"]
    assert "delivery=staged, since the query reads from 'rate'" in line
    assert line.endswith("; begins where its source does")


@pytest.mark.slow
def test_on_spark_connect_the_client_says_it(flow: Flow, connect_service: ConnectService) -> None:
    queries: Queries = connect_service.queries
    flow.produce(range(6))
    order = (flow.options(), flow.source, relay)
    (line,) = queries.ask(spoken, *order)
    assert line == (
        f"spark-eos: group {flow.group_id}: delivery=direct, since {_NARROW}, unless its "
        "checkpoint was begun with staged; begins at earliest (starting_offsets); up to 6 records "
        "wait"
    )
    (line,) = queries.ask(spoken, *order)
    assert line.endswith("; continues from the group's offsets; no records wait")


# Batches, and where it is said -------------------------------------------------------------------


@pytest.mark.slow
def test_where_the_log_takes_info_it_is_said_there_alone(
    flow: Flow,
    said: Callable[..., list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.getLogger("spark_eos").setLevel(logging.INFO)
    flow.produce(range(2))
    assert said(sink={"on_batch": print_batch}) == []
    ours = [r for r in caplog.records if r.name == "spark_eos"]
    assert [(r.levelno, getattr(r, "event", "")) for r in ours] == [
        (logging.INFO, "start"),
        (logging.INFO, "batch"),
    ]
    assert re.fullmatch(
        rf"event=batch group_id={flow.group_id} batch_id=0 delivery=direct rows_written=2 "
        r"rows_skipped=0 transactions=2 source_partitions=2 attempts=1 total_ms=[\d.]+",
        ours[1].getMessage(),
    )


def test_the_level_of_the_logger_silences_it(
    flow: Flow,
    said: Callable[..., list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.getLogger("spark_eos").setLevel(logging.WARNING)
    flow.produce(range(2))
    assert said(sink={"on_batch": print_batch}) == []
    assert [r for r in caplog.records if r.name == "spark_eos"] == []
    assert sorted(flow.values()) == ["0", "1"]


@pytest.mark.slow
def test_a_query_starts_where_nothing_can_be_found_out(
    flow: Flow, said: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("nobody answers")

    monkeypatch.setattr("spark_eos._sink.start_line.end_offsets", fails)
    flow.produce(range(2))
    assert said() == [f"spark-eos: group {flow.group_id}: delivery=direct, since {_NARROW}"]
    assert sorted(flow.values()) == ["0", "1"]
