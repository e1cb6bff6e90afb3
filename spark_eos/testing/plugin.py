"""Pytest fixtures: a broker, a schema registry and Spark, each started once per test run."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

# Every pytest run in the environment loads this module, so it imports dependencies lazily.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_eos.testing.broker import EmbeddedKafka
    from spark_eos.testing.registry import EmbeddedSchemaRegistry

_LOG_LINES = 60


@contextmanager
def _shown(config: pytest.Config) -> Iterator[None]:
    """Don't capture output in this context: first downloads and preparations take a while."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        yield
        return
    with capture.global_and_fixture_disabled():
        yield


@pytest.fixture(scope="session")
def embedded_kafka(request: pytest.FixtureRequest) -> "Iterator[EmbeddedKafka]":
    """Provide a running `EmbeddedKafka`, shared by the whole test run: use a topic per test.

    When a test that uses it fails, the report contains the end of the broker's log.

    Example:
        ::

            def test_topic(embedded_kafka):
                embedded_kafka.create_topic("orders", partitions=4)
    """
    from spark_eos.testing.broker import EmbeddedKafka  # noqa: PLC0415

    kafka = EmbeddedKafka()
    with _shown(request.config):
        kafka.prepare()
    with kafka as broker:
        yield broker


@pytest.fixture(scope="session")
def schema_registry(request: pytest.FixtureRequest) -> "Iterator[EmbeddedSchemaRegistry]":
    """Provide a running `EmbeddedSchemaRegistry`, shared by the whole test run.

    Use a subject per test. When a test that uses the registry fails, the report contains the end of
    its log.

    Example:
        ::

            def test_url(schema_registry):
                assert schema_registry.url.startswith("http://127.0.0.1:")
    """
    from spark_eos.testing.registry import EmbeddedSchemaRegistry  # noqa: PLC0415

    registry = EmbeddedSchemaRegistry()
    with _shown(request.config):
        registry.prepare()
    with registry:
        yield registry


@pytest.fixture(scope="session")
def spark_eos_session(request: pytest.FixtureRequest) -> "Iterator[SparkSession]":
    """Provide a local Spark session with Spark's Kafka source, shared by the whole test run.

    Example:
        ::

            def test_count(spark_eos_session):
                assert spark_eos_session.range(3).count() == 3
    """
    from spark_eos.testing.spark import prepare_quick_start, spark_session  # noqa: PLC0415

    with _shown(request.config):
        prepare_quick_start()
    session = spark_session("spark-eos-tests", quick_start=True)
    yield session
    session.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the servers' logs to the report of a failed test that used them."""
    report = yield
    if report.failed:
        from spark_eos.testing.broker import EmbeddedKafka  # noqa: PLC0415
        from spark_eos.testing.registry import EmbeddedSchemaRegistry  # noqa: PLC0415

        for name, used in getattr(item, "funcargs", {}).items():
            if isinstance(used, EmbeddedKafka | EmbeddedSchemaRegistry):
                lines = used.log().splitlines()[-_LOG_LINES:]
                report.sections.append((f"Log of {name}", "\n".join(lines)))
    return report
