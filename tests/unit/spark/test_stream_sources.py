"""Sources that a query may have, and which of their topics the sink checks."""

import json
from typing import cast

import pytest
from pyspark.sql import SparkSession

from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._pyspark_internals import StreamSource
from spark_eos._spark.stream_sources import (
    READ_BY_US,
    check_losses_seen,
    check_read_for,
    check_sources,
    check_staged_sources,
    check_still_read,
    not_only_ours,
    only_topic,
    read_by_others,
)
from spark_eos._spark.topic_patterns import SourceTopics
from spark_eos.errors import CheckpointError, UnsupportedPipelineError
from support.checkpoint_texts import CheckpointTexts

_LEVEL = "kafka.isolation.level"
_SAFE = {_LEVEL: "read_committed", "subscribe": "orders"}


@pytest.mark.parametrize("check", [check_sources, check_staged_sources])
def test_deleted_records_may_be_skipped_only_if_reported(check: object) -> None:
    assert callable(check)
    skipping = {**_SAFE, "failondataloss": "false"}
    check([StreamSource("kafka", {**skipping, READ_BY_US: "true"})])
    with pytest.raises(UnsupportedPipelineError, match=r"failOnDataLoss.*read with sink\.read"):
        check([StreamSource("kafka", skipping)])
    with pytest.raises(UnsupportedPipelineError, match="read_committed"):
        check([StreamSource("kafka", {"subscribe": "orders"})])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([{**_SAFE, _LEVEL: "read_uncommitted"}], "is 'read_uncommitted'"),
        ([{**_SAFE, "minpartitions": "4"}], "'minPartitions'"),
        ([{**_SAFE, "maxrecordsperpartition": "4"}], "'maxRecordsPerPartition'"),
        ([_SAFE, {**_SAFE, "subscribe": "payments,orders"}], "'orders' more than once"),
        ([_SAFE, {_LEVEL: "read_committed", "subscribepattern": "pay.*"}], "more than once"),
    ],
)
def test_what_a_direct_query_may_not_read(given: list[dict[str, str]], words: str) -> None:
    with pytest.raises(UnsupportedPipelineError, match=words):
        check_sources([StreamSource("kafka", options) for options in given])


def test_the_topics_that_others_than_sink_read_read() -> None:
    # A reader of Spark's own may read any cluster.
    others = [
        StreamSource("kafka", {**_SAFE, "subscribe": "orders, payments"}),
        StreamSource("kafka", {"assign": '{"returns": [0, 1]}'}),
        StreamSource("kafka", {"subscribepattern": "eu-.*"}),
        StreamSource("rate", {}),
    ]
    own = [StreamSource("kafka", {**_SAFE, "subscribe": "refunds", READ_BY_US: "group"})]
    names = frozenset({"orders", "payments", "returns"})
    assert read_by_others([*others, *own]) == SourceTopics(names, frozenset({"eu-.*"}))


def test_offsets_of_other_sources_that_look_like_kafkas() -> None:
    own = [StreamSource("kafka", {**_SAFE, "subscribe": "refunds", READ_BY_US: "group"})]
    other = [StreamSource("kafka", {**_SAFE, "subscribe": "orders"}), StreamSource("shop", {})]
    spark = cast("SparkSession", None)  # asked only for patterns
    topics = {"refunds", "orders", "shards"}
    assert not_only_ours([*own, *other], spark, topics) == {"orders", "shards"}


@pytest.mark.parametrize(
    ("source", "others"),
    [
        ({"subscribe": "orders,elsewhere"}, []),
        ({"subscribePattern": "o.*"}, []),
        ({"kafka.bootstrap.servers": "other:9092"}, []),
        ({}, [{**_SAFE}]),
        ({}, [{"subscribepattern": "x"}]),
    ],
    ids=["not read by it", "a pattern", "another cluster", "a name twice", "a pattern beside it"],
)
def test_losses_are_ignored_only_where_the_sink_alone_reads(
    source: dict[str, str], others: list[dict[str, str]]
) -> None:
    skipping = {"failondataloss": "false", READ_BY_US: "true", "kafka.bootstrap.servers": "a:9092"}
    selections = [{"subscribe": "orders"}]
    base = {**_SAFE, **skipping}
    check_losses_seen([StreamSource("kafka", base), StreamSource("rate", {})], selections, "a:9092")
    given = {**base, **{name.lower(): text for name, text in source.items()}}
    if "subscribepattern" in given:
        del given["subscribe"]
    sources = [StreamSource("kafka", given), *(StreamSource("kafka", one) for one in others)]
    with pytest.raises(UnsupportedPipelineError, match="skipped silently"):
        check_losses_seen(sources, selections, "a:9092")
    # Where Spark ends the query, nothing is skipped.
    failing = [
        StreamSource(one.format, {**one.options, "failondataloss": "true"}) for one in sources
    ]
    check_losses_seen(failing, selections, "a:9092")


@pytest.mark.parametrize(
    ("fails", "then"), [(True, "be skipped silently"), (False, "end the query")]
)
def test_a_sink_that_reads_with_another_fail_on_data_loss(
    fails: bool,  # noqa: FBT001
    then: str,
) -> None:
    read = {**_SAFE, READ_BY_US: "group", "failondataloss": str(not fails).lower()}
    source = StreamSource("kafka", read)
    check_read_for("group", [source], fail_on_data_loss=not fails)
    with pytest.raises(UnsupportedPipelineError, match=f"deleted records would {then}"):
        check_read_for("group", [source], fail_on_data_loss=fails)
    # A reader of Spark's own always ends the query: `check_sources` sees to it.
    check_read_for("group", [StreamSource("kafka", _SAFE)], fail_on_data_loss=fails)


def test_the_only_topic_that_rows_may_come_from() -> None:
    named = StreamSource("kafka", {**_SAFE, READ_BY_US: "group"})
    others = [
        # A batch that is repeated may have a topic that has been left out since.
        StreamSource("kafka", {**named.options, "failondataloss": "false"}),
        StreamSource("kafka", {"subscribepattern": "orders"}),
        StreamSource("kafka", {"subscribe": "orders,payments"}),
    ]
    assert only_topic([named]) == "orders"
    assert [only_topic([source]) for source in others] == [None, None, None]


def test_partitions_that_are_no_longer_assigned() -> None:
    log = OffsetLog(CheckpointTexts({"offsets/0": 'v1\n{}\n{"a":{"0":4,"1":4}}'}))
    spark = cast("SparkSession", None)  # asked only for patterns
    zero, one = (StreamSource("kafka", {"assign": json.dumps({"a": [n]})}) for n in range(2))
    check_still_read([zero, one], spark, log)
    check_still_read([StreamSource("kafka", {"subscribe": "a"})], spark, log)
    with pytest.raises(CheckpointError, match=r"no longer read: a-1\. .*in subscribe or assign"):
        check_still_read([zero], spark, log)
    skipping = StreamSource("kafka", {**zero.options, "failondataloss": "false"})
    check_still_read([skipping], spark, log)
    # Only the other source ends the query if records are missing.
    two = OffsetLog(CheckpointTexts({"offsets/0": 'v1\n{}\n{"a":{"0":4,"1":4}}\n{"b":{"0":1}}'}))
    check_still_read([skipping, StreamSource("kafka", {"subscribe": "b"})], spark, two)
