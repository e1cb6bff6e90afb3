import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from spark_eos.testing import EmbeddedKafka

_CONFTEST = """
import pytest

from support.shared_brokers import SharedBrokersPlugin, shared_kafka


def pytest_configure(config):
    config.pluginmanager.register(SharedBrokersPlugin(config))


@pytest.fixture(scope="session")
def embedded_kafka(request):
    return shared_kafka(request.config, "a broker")
"""
_TESTS = """
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", range(4))
def test_a_broker(embedded_kafka, number):
    embedded_kafka.create_topic(f"topic-{number}")
    with Path(__file__).with_name("brokers").open("a") as file:
        print(embedded_kafka.pid, file=file)
"""


def test_a_test_can_not_end_it(embedded_kafka: EmbeddedKafka) -> None:
    for end in (embedded_kafka.stop, embedded_kafka.kill, embedded_kafka.pause):
        with pytest.raises(RuntimeError, match="starts its own"):
            end()
    assert embedded_kafka.is_running
    assert "Kafka Server started" in embedded_kafka.log()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
def test_all_processes_have_one_that_ends_with_the_run(tmp_path: Path, processes: int) -> None:
    tests = tmp_path / "test_brokers.py"
    tests.write_text(_TESTS)
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    options = ["--numprocesses", str(processes)]
    result = subprocess.run(
        [*command, *options, str(tests)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (pid,) = set((tmp_path / "brokers").read_text().split())
    assert not psutil.pid_exists(int(pid))
