"""Which sources a staged query may have, and which topics of theirs are ours to look after."""

import pytest

from spark_eos.errors import UnsupportedPipelineError
from spark_eos.spark.stream_sources import (
    READ_BY_US,
    StreamSource,
    check_sources,
    check_staged_sources,
    only_read_by_sink,
)

_SAFE = {"kafka.isolation.level": "read_committed", "subscribe": "orders"}


@pytest.mark.parametrize("check", [check_sources, check_staged_sources])
def test_deleted_records_may_be_skipped_only_where_they_are_reported(check: object) -> None:
    assert callable(check)
    skipping = {**_SAFE, "failondataloss": "false"}
    check([StreamSource("kafka", {**skipping, READ_BY_US: "true"})])
    with pytest.raises(UnsupportedPipelineError, match=r"failOnDataLoss.*read with sink\.read"):
        check([StreamSource("kafka", skipping)])
    with pytest.raises(UnsupportedPipelineError, match="read_committed"):
        check([StreamSource("kafka", {"subscribe": "orders"})])


def test_the_topics_that_sink_read_reads() -> None:
    selections = [
        {"subscribe": "orders, payments"},
        {"assign": '{"returns": [0, 1]}'},
        {"subscribePattern": "eu-.*"},
    ]
    # A reader of Spark's own may read any cluster.
    others = [StreamSource("kafka", {**_SAFE, "subscribe": "payments"}), StreamSource("rate", {})]
    own = [StreamSource("kafka", {**_SAFE, READ_BY_US: "true"})]
    reads = only_read_by_sink(selections, [*others, *own])
    names = ["orders", "payments", "returns", "eu-orders", "us-orders", "order"]
    assert [name for name in names if reads(name)] == ["orders", "returns", "eu-orders"]
