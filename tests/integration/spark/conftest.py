"""Sessions of both APIs, and one for staged queries."""

from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from pyspark.sql import SparkSession

from spark_eos.testing import EmbeddedSchemaRegistry
from support.apis import Queries


@pytest.fixture(
    scope="module", params=["foreachBatch", pytest.param("connect", marks=pytest.mark.slow)]
)
def queries(request: pytest.FixtureRequest) -> Queries:
    """Each API in turn, on a session that the tests share."""
    if request.param == "connect":
        found: Queries = request.getfixturevalue("connect_service").queries
        return found
    request.getfixturevalue("spark_eos_session")
    return Queries()


@pytest.fixture(scope="module")
def spark(spark_eos_session: SparkSession) -> Iterator[SparkSession]:
    """The shared session, with a different number of shuffle partitions."""
    name = "spark.sql.shuffle.partitions"
    before = str(spark_eos_session.conf.get(name))
    spark_eos_session.conf.set(name, "3")
    yield spark_eos_session
    spark_eos_session.conf.set(name, before)


@pytest.fixture
def registry_client(schema_registry: EmbeddedSchemaRegistry) -> Iterator[SchemaRegistryClient]:
    """Confluent's own client of the schema registry."""
    with SchemaRegistryClient({"url": schema_registry.url}) as client:
        yield client
