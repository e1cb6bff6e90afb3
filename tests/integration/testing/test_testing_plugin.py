import subprocess
import sys

import pytest

from spark_eos._jars.cache import CACHE_VARIABLE, cache_directory

# Known before pytester moves the home directory.
USERS_CACHE = cache_directory()

USERS_TESTS = """
    from confluent_kafka import Producer
    from confluent_kafka.schema_registry import SchemaRegistryClient

    def test_round_trip(embedded_kafka, spark_eos_session):
        embedded_kafka.create_topic("words")
        producer = Producer({"bootstrap.servers": embedded_kafka.bootstrap_servers})
        producer.produce("words", b"one")
        assert producer.flush(60) == 0
        rows = (
            spark_eos_session.read.format("kafka")
            .option("kafka.bootstrap.servers", embedded_kafka.bootstrap_servers)
            .option("subscribe", "words")
            .load()
            .selectExpr("cast(value as string) as word")
            .collect()
        )
        assert [row.word for row in rows] == ["one"]

    def test_the_broker_is_shared(embedded_kafka):
        embedded_kafka.create_topic("more-words")
        assert embedded_kafka.is_running

    def test_the_registry(schema_registry):
        assert SchemaRegistryClient({"url": schema_registry.url}).get_subjects() == []

    def test_that_fails(embedded_kafka, schema_registry):
        assert embedded_kafka.pid == schema_registry.pid

    def test_that_fails_without_kafka():
        assert False
"""


@pytest.mark.slow
def test_a_users_suite_gets_kafka_and_spark(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(USERS_CACHE))
    pytester.makepyfile(USERS_TESTS)
    # The user's tests run as they are written: what is asserted below goes by their order.
    options = ("-p", "no:cacheprovider", "-p", "no:randomly", "-q")
    result = pytester.runpytest_subprocess(*options, timeout=300)
    result.assert_outcomes(passed=3, failed=2)
    output = result.stdout.str()
    with_kafka, _, without = output.partition("test_that_fails_without_kafka")
    assert "Log of embedded_kafka" in with_kafka
    assert "Performing controller activation" in with_kafka
    assert "Log of schema_registry" in with_kafka
    assert "GET /apis/ccompat/v7/subjects 200" in with_kafka
    assert "Log of " not in without


@pytest.mark.slow
def test_a_users_fixture_of_the_same_name_has_no_log(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def schema_registry():
            return "http://localhost:8081"

        def test_that_fails(schema_registry):
            assert schema_registry == ""
    """)
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    assert "Log of " not in result.stdout.str()


@pytest.mark.slow
def test_preparing_is_shown_although_pytest_captures(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(USERS_CACHE))
    pytester.makeconftest("""
        import sys
        from spark_eos.testing import EmbeddedKafka

        prepare = EmbeddedKafka.prepare

        def slowly(self):
            print("this takes long", file=sys.stderr)
            prepare(self)

        EmbeddedKafka.prepare = slowly
    """)
    pytester.makepyfile("""
        def test_kafka(embedded_kafka):
            assert embedded_kafka.is_running
    """)
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", timeout=240)
    result.assert_outcomes(passed=1)
    assert "this takes long" in result.stderr.str()


@pytest.mark.slow
def test_the_spark_session_is_set_up_as_documented() -> None:
    script = """
from spark_eos.testing import spark_session
spark = spark_session("name", config={"spark.sql.shuffle.partitions": "3"})
conf = spark.conf
assert conf.get("spark.sql.session.timeZone") == "UTC"
assert conf.get("spark.sql.shuffle.partitions") == "3"
assert conf.get("spark.driver.host") == "127.0.0.1"
assert spark.sparkContext.uiWebUrl is None
assert spark.sparkContext.master == "local[2]"
import sys
workers = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
assert workers == [sys.executable], workers
spark.stop()
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    # The JVM itself says this one, and has no switch for it.
    assert result.stderr.strip() == "WARNING: Using incubator modules: jdk.incubator.vector"


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    script = "import sys, spark_eos.testing.plugin; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True
    )
    modules = set(result.stdout.split())
    assert not {"pyspark", "confluent_kafka", "kafka", "pyarrow", "rich"} & modules


@pytest.mark.slow
def test_a_failing_test_with_patched_modules_is_only_a_failing_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("""
        import sys
        from unittest.mock import MagicMock

        import pytest

        class Lazy:
            @property
            def __class__(self):
                raise RuntimeError("asked too early")

        @pytest.fixture
        def lazy():
            return Lazy()

        def test_that_fails(monkeypatch, lazy):
            monkeypatch.setitem(sys.modules, "confluent_kafka", MagicMock())
            assert False

        def test_that_passes():
            pass
    """)
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "-p", "no:randomly")
    result.assert_outcomes(passed=1, failed=1)
    assert "INTERNALERROR" not in result.stdout.str()
