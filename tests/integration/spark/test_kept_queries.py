"""What queries of kept formats have left is read by today's code: they go on, exactly once.

`support.kept_queries` has stopped each of them in the middle of its second batch.
"""

from collections import Counter
from pathlib import Path

import pyspark
import pytest
from packaging.version import Version
from pyspark.sql import SparkSession

from spark_eos._admin.dead_letter_topic import DeadLetterTopic
from spark_eos._client.persisted import FORMAT
from spark_eos._client.settings import ClientSettings
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

_END = 2 * BATCH


def _values(query: Query) -> Counter[int]:
    return Counter(map(int, query.flow.values()))


def _once(*numbers: range) -> Counter[int]:
    return Counter(n for one in numbers for n in one if n != UNLUCKY)


@pytest.fixture(params=DELIVERIES)
def query(
    request: pytest.FixtureRequest,
    embedded_kafka: EmbeddedKafka,
    other_kafka: EmbeddedKafka,
    tmp_path: Path,
) -> Query:
    """A query of each delivery, as it was left; brokers of the test run have no other such one."""
    delivery = request.param
    return Query(kept_flow(delivery, tmp_path, embedded_kafka, other_kafka), delivery)


def test_each_format_is_kept() -> None:
    assert kept_formats() == [FORMAT], "keep queries of the new format: support/kept_queries.py"


def test_it_is_continued(query: Query, spark_eos_session: SparkSession) -> None:
    if Version(kept_spark(FORMAT)) > Version(pyspark.__version__):
        pytest.skip("Spark reads no checkpoints of newer versions")
    restore(query, FORMAT)
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
    (letter,) = DeadLetterTopic(settings, query.dead_letter_topic, 60).read()
    assert (letter.value, letter.reason) == (b"7", "error")
    told = letter.error_headers
    assert (told["message"], told["group"]) == ("unlucky", query.flow.group_id)
