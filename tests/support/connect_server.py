"""A Spark Connect server in a process of its own."""

import os
import signal
import socket
import subprocess
from importlib import resources
from pathlib import Path

import psutil

from spark_eos.testing.spark import prepare_environment, spark_settings
from support.queries import until

_TESTS = Path(__file__).parents[1]
_HOST = "127.0.0.1"
_SINK = "foreach_batch_worker"
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer:
    """A server, from its start until `kill`.

    Args:
        log: file for all that the server and its Python processes print.
        master: where it runs tasks; by default a task may fail three times.
    """

    def __init__(self, log: Path, master: str = "local[2,4]") -> None:
        prepare_environment()
        with socket.create_server((_HOST, 0)) as free:
            self.port = int(free.getsockname()[1])
        settings = spark_settings(
            {
                "spark.connect.grpc.binding.address": _HOST,
                "spark.connect.grpc.binding.port": str(self.port),
                # Rows reach the sink in small pieces, so that a test may stop in between.
                "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
            },
            quick_start=True,
        )
        command = [str(resources.files("pyspark") / "bin" / "spark-submit")]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        command += ["--master", master, "--class", _CLASS]
        # Its processes import what tests define, and find it where this process does.
        paths = [str(_TESTS), str(_TESTS.parent), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self._log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        until(self._answers, lambda: f"the server\n{self.output()[-4000:]}")

    def _answers(self) -> bool:
        assert self.process.poll() is None, f"the server has ended:\n{self.output()[-4000:]}"
        with socket.socket() as probe:
            return probe.connect_ex((_HOST, self.port)) == 0

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"sc://{_HOST}:{self.port}"

    def output(self) -> str:
        """What it and its Python processes have printed so far."""
        return self._log.read_text(errors="replace")

    def sinks(self) -> list[int]:
        """The processes in which sinks run."""
        children = psutil.Process(self.process.pid).children()
        return [child.pid for child in children if _SINK in " ".join(child.cmdline())]

    def kill_jvm(self) -> None:
        """SIGKILL for the server alone."""
        self.process.kill()
        self.process.wait()

    def kill(self) -> None:
        """SIGKILL for the server and its Python processes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
