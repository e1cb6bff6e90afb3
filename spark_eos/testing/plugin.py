"""Pytest fixtures: a broker, a schema registry and Spark, each started once per test run."""

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

# Every pytest run in the environment loads this module, so it imports dependencies lazily.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_eos.testing.broker import EmbeddedKafka
    from spark_eos.testing.registry import EmbeddedSchemaRegistry

_LOG_LINES: Final = 60
_SERVERS: Final = {
    "spark_eos.testing.broker": "EmbeddedKafka",
    "spark_eos.testing.registry": "EmbeddedSchemaRegistry",
}


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
    from spark_eos._pyspark_internals import existing_session  # noqa: PLC0415
    from spark_eos.testing.spark import prepare_quick_start, spark_session  # noqa: PLC0415

    with _shown(request.config):
        prepare_quick_start()
    existing = existing_session()
    session = spark_session("spark-eos-tests", quick_start=True)
    yield session
    if session is not existing:  # it belongs to the user
        session.stop()


# The older kind of wrapper, because each version of pytest and pluggy knows it.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Add the end of the servers' logs to the report of a failed test that used them."""
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        # The test's patches are still in place, so nothing is imported and no object is asked.
        loaded = {name: sys.modules[name] for name in _SERVERS if name in sys.modules}
        servers = tuple(getattr(module, _SERVERS[name]) for name, module in loaded.items())
        for name, used in getattr(item, "funcargs", {}).items():
            if issubclass(type(used), servers):
                lines = used.log().splitlines()[-_LOG_LINES:]
                report.sections.append((f"Log of {name}", "\n".join(lines)))
