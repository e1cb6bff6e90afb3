"""Fixtures of spark-eos' own tests."""

import concurrent.futures
import gc
import logging
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from spark_eos.testing import EmbeddedKafka, spark_session
from spark_eos.testing.spark import prepare_quick_start
from support.connect_server import ConnectService
from support.flow import Flow
from support.mirroring import MirroredFlow
from support.planting import fill
from support.proxied_worker import ProxiedWorker, proxied_worker
from support.proxy import KafkaProxy, clean
from support.secured import Secured, secured_kafka
from support.shared_brokers import SharedBrokersPlugin, SharedKafka, add_threads, shared_kafka
from support.versions import CLOSES_SOCKETS

if TYPE_CHECKING:
    from support.object_store import ObjectStore

pytest_plugins = ["pytester"]
# Spark's workers find there what tests define.
_PATHS = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PATHS))

# How long an example takes tells how busy the machine is.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Shares brokers; ignores connected sockets that older PySparks leave open."""
    config.pluginmanager.register(SharedBrokersPlugin(config))
    if not CLOSES_SOCKETS:
        own = "ignore:unclosed <socket.socket .*, raddr=:ResourceWarning"
        config.addinivalue_line("filterwarnings", own)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Chooses which process runs which module, with ``--dist loadscope``."""
    if config.getoption("dist") != "loadscope":
        return None
    from support.scheduling import SparkInSomeProcesses

    return SparkInSomeProcesses(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Excludes permanent objects, such as modules and tests, from garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Raises confluent-kafka's errors as KafkaException: a KafkaError would end pytest itself."""
    try:
        return (yield)
    except KafkaError as error:  # type: ignore[misc]
        raised = KafkaException(KafkaError(error.code(), error.str()))
    raise raised


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: "pytest.CallInfo[None]"
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the broker's state to the report of a test that waited for it in vain."""
    report = yield
    broker = getattr(item, "funcargs", {}).get("embedded_kafka")
    timeouts = (TimeoutError, concurrent.futures.TimeoutError)
    if broker is not None and call.excinfo is not None and call.excinfo.errisinstance(timeouts):
        add_threads(report, broker)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how to repeat the same order of tests."""
    seed = terminalreporter.config.getoption("randomly_seed", None)
    if seed is not None:
        terminalreporter.write_line(f"The order of the tests is that of --randomly-seed={seed}")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Resets logger changes that a test, or a job that it runs, made in this process."""
    loggers = [logging.getLogger(name) for name in ("spark_eos", "py4j", "kafka")]
    before = [(each, each.level, list(each.handlers), each.propagate) for each in loggers]
    yield
    for logger, level, handlers, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)  # which also forgets what loggers have found out about it


@pytest.fixture(scope="session")
def embedded_kafka(request: pytest.FixtureRequest) -> SharedKafka:
    """A broker for all processes of the test run."""
    return shared_kafka(request.config, "embedded_kafka")


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator["ObjectStore"]:
    """A real S3 server, whose address and keys are in this process's environment."""
    from support.object_store import ObjectStore

    with ObjectStore(tmp_path_factory.mktemp("store")) as store, pytest.MonkeyPatch.context() as m:
        for name, value in store.environment.items():
            m.setenv(name, value)
        yield store


@pytest.fixture(scope="session")
def checkpoints(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str | None]:
    """The location of checkpoints; None for a test's own directory. Some Make targets set it."""
    where = os.environ.get("SPARK_EOS_CHECKPOINTS")
    if where == "hdfs":
        from support.hadoop import Hadoop

        with Hadoop(tmp_path_factory.mktemp("hadoop"), yarn=False) as hadoop:
            yield hadoop.hdfs
    elif where == "s3a":
        yield request.getfixturevalue("object_store").location
    else:
        yield None


@pytest.fixture
def new_flow(
    request: pytest.FixtureRequest,
    embedded_kafka: EmbeddedKafka,
    checkpoints: str | None,
    tmp_path: Path,
) -> Callable[..., Flow]:
    """Makes topics, a group and a checkpoint for the test."""

    def make(**options: Any) -> Flow:
        checkpoint = f"{checkpoints or ''}{tmp_path}/checkpoint"
        if checkpoint.startswith("s3a:"):
            options.setdefault("config", request.getfixturevalue("object_store").settings)
        return Flow(embedded_kafka, checkpoint, str(tmp_path / "workers"), **options)

    return make


@pytest.fixture
def flow(new_flow: Callable[..., Flow]) -> Flow:
    """Topics of two partitions, a group and a checkpoint for the test."""
    return new_flow()


@pytest.fixture
def flow_alone(tmp_path: Path) -> Iterator[Flow]:
    """A flow on its own broker, which may be stopped."""
    with EmbeddedKafka() as broker:
        yield Flow(broker, str(tmp_path / "checkpoint"), str(tmp_path / "workers"))


@pytest.fixture(scope="session")
def cheaper_spark(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings of a cheaper Spark, for `make test`; slow tests use Spark with its defaults."""
    if request.config.option.markexpr != "not slow":
        return {}
    return {"spark.python.daemon.module": "spark_eos.worker_daemon"}


@pytest.fixture(scope="session")
def spark_eos_session(cheaper_spark: dict[str, str]) -> Iterator[SparkSession]:
    """A Spark session for all tests of a process."""
    prepare_quick_start()
    with spark_session("spark-eos-tests", config=cheaper_spark, quick_start=True) as session:
        yield session


@pytest.fixture(scope="session")
def other_kafka(request: pytest.FixtureRequest) -> SharedKafka:
    """A second cluster, for sources in another cluster."""
    return shared_kafka(request.config, "other_kafka")


@pytest.fixture
def new_mirrored_flow(
    embedded_kafka: EmbeddedKafka, other_kafka: EmbeddedKafka, tmp_path: Path
) -> Callable[..., MirroredFlow]:
    """Makes a source in one cluster, and a target and a group in another."""

    def make(**options: Any) -> MirroredFlow:
        places = (str(tmp_path / "checkpoint"), str(tmp_path / "workers"))
        return MirroredFlow(embedded_kafka, *places, **{"other": other_kafka, **options})

    return make


@pytest.fixture
def mirrored_flow(new_mirrored_flow: Callable[..., MirroredFlow]) -> MirroredFlow:
    """Topics of two partitions in two clusters, a group and a checkpoint for the test."""
    return new_mirrored_flow()


@pytest.fixture
def filled_mirrored_flow(mirrored_flow: MirroredFlow) -> MirroredFlow:
    """A mirrored flow whose source has records, with a progress topic."""
    mirrored_flow.broker.create_topic(mirrored_flow.progress, mirrored_flow.partitions)
    fill(mirrored_flow)
    return mirrored_flow


@pytest.fixture(scope="session")
def connect_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectService]:
    """A Spark Connect server and its client, started on first use."""
    with ConnectService(tmp_path_factory.mktemp("connect")) as service:
        yield service


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker with secured listeners, shared by the whole test run."""
    with secured_kafka(tmp_path_factory.mktemp("secured")) as found:
        yield found


@pytest.fixture(scope="session")
def _proxy(embedded_kafka: EmbeddedKafka) -> Iterator[KafkaProxy]:
    with KafkaProxy(int(embedded_kafka.bootstrap_servers.rpartition(":")[2])) as proxy:
        yield proxy


@pytest.fixture
def proxy(_proxy: KafkaProxy) -> Iterator[KafkaProxy]:
    """A proxy without rules in front of the broker; see `proxied_flow`."""
    with clean(_proxy) as found:
        yield found


@pytest.fixture
def proxied_flow(new_flow: Callable[..., Flow], proxy: KafkaProxy) -> Flow:
    """Like `flow`, with all clients behind the proxy."""
    return new_flow(through=proxy.bootstrap_servers)


@pytest.fixture
def worker(proxied_flow: Flow, proxy: KafkaProxy) -> Iterator[ProxiedWorker]:
    """A member and a worker behind the proxy, which commits before the test and after it."""
    with proxied_worker(proxied_flow, proxy) as found:
        found.add_and_commit()
        yield found
        proxy.reset()
        found.add_and_commit()
