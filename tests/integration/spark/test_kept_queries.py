"""Queries saved in earlier formats continue with the current code, exactly once.

`support.kept_queries` stopped each query in the middle of its second batch.
"""

from collections import Counter
from contextlib import closing
from pathlib import Path

import pyspark
import pytest
from packaging.version import Version
from pyspark.sql import SparkSession

from spark_eos._checkpoint.files import ArrowFiles
from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._client.persisted import FORMAT
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.dead_letter_topic import DeadLetterTopic
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.offsets import all_group_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.testing import EmbeddedKafka
from support.kept_queries import (
    BATCH,
    DELIVERIES,
    UNLUCKY,
    Query,
    kept_flow,
    kept_formats,
    kept_spark,
    restore,
)
from support.members import deadline

_END = 2 * BATCH


def _values(query: Query) -> Counter[int]:
    return Counter(map(int, query.flow.values()))


def _once(*numbers: range) -> Counter[int]:
    return Counter(n for one in numbers for n in one if n != UNLUCKY)


@pytest.fixture(
    params=[(number, name) for number in kept_formats() for name in DELIVERIES], ids=str
)
def kept(
    request: pytest.FixtureRequest,
    embedded_kafka: EmbeddedKafka,
    other_kafka: EmbeddedKafka,
    tmp_path: Path,
) -> tuple[int, Query]:
    """A query of each format and delivery; the test run's brokers have no others like it."""
    number, delivery = request.param
    return number, Query(kept_flow(delivery, tmp_path, embedded_kafka, other_kafka), delivery)


def _check_what_is_read(query: Query) -> None:
    """The marker and the offsets' texts agree about the query, and each alone is sufficient."""
    flow = query.flow
    marker = OffsetLog(ArrowFiles(flow.checkpoint)).markers.read()
    assert (marker.group_id, marker.delivery) == (flow.group_id, query.delivery)
    with closing(Connections(ClientSettings(flow.kafka))) as connections:
        found = all_group_offsets(connections, flow.group_id, deadline())
    known = KnownPartitions.of(found)
    sources = {TopicPartition(flow.source, number) for number in (0, 1)}
    if query.delivery == "direct":
        assert known.partitions == sources
        assert set(marker.partitions[flow.source]) == {0, 1}
    elif query.delivery == "mirrored":
        assert {one.topic_partition for one in known.sources.values()} == sources
        assert {p.partition: one for p, one in known.sources.items()} == marker.sources
    else:
        (staged,) = known.staged.values()
        assert (staged.batch, staged.rows) == (1, BATCH)
        assert marker.progress_partitions == 3


def test_each_format_is_kept() -> None:
    assert FORMAT in kept_formats(), "keep queries of the new format: support/kept_queries.py"


@pytest.mark.slow
def test_it_is_continued(kept: tuple[int, Query], spark_eos_session: SparkSession) -> None:
    number, query = kept
    if Version(kept_spark(number)) > Version(pyspark.__version__):
        pytest.skip("Spark reads no checkpoints of newer versions")
    restore(query, number)
    _check_what_is_read(query)
    written = _values(query)
    missing = _once(range(_END)) - written
    assert not written - _once(range(_END))
    assert 0 < missing.total() < BATCH
    (recovered,) = query.run(spark_eos_session)
    assert recovered.batch_id == 1
    assert recovered.delivery == query.delivery
    assert recovered.rows_written == missing.total()
    assert _values(query) == _once(range(_END))
    query.produce(range(_END, _END + BATCH))
    (following,) = query.run(spark_eos_session)
    assert (following.batch_id, following.rows_written) == (2, BATCH)
    assert _values(query) == _once(range(_END + BATCH))
    settings = ClientSettings(query.flow.kafka)
    (dead_letter,) = DeadLetterTopic(settings, query.dead_letter_topic, 60).read()
    assert (dead_letter.value, dead_letter.reason) == (b"7", "error")
    headers = dead_letter.error_headers
    assert (headers["message"], headers["group"]) == ("unlucky", query.flow.group_id)
