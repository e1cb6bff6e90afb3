"""A Spark Connect server in a process of its own."""

import os
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from importlib import resources
from pathlib import Path

import psutil

from spark_eos.testing.spark import prepare_environment, spark_settings
from support.apis import Queries, connect_queries
from support.killable_process import SessionGuard
from support.queries import until

_TESTS = Path(__file__).parents[1]
_HOST = "127.0.0.1"
_SINK = "foreach_batch_worker"
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


def lives(process: psutil.Process) -> bool:
    """Return True while a process runs. A zombie doesn't count as running."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def listens(pid: int, port: int) -> bool:
    """Return True if this process listens on a port: another process may have taken the port."""
    found = psutil.Process(pid).net_connections("tcp")
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in found)


def _compiled_python(script: Path, python_path: str) -> Path:
    """A Python that imports the installed, compiled PySpark: this saves 2 s of CPU per process.

    Spark puts its pyspark.zip first, which each process has to compile, and a sink's process has
    only 10 s to start.
    """
    variable, python = shlex.quote(f"PYTHONPATH={python_path}"), shlex.quote(sys.executable)
    script.write_text(f'#!/bin/sh\nexec env {variable} {python} "$@"\n')
    script.chmod(0o755)
    return script


class ConnectServer:
    """A server, from its start until `kill`."""

    def __init__(self, log: Path, files: Path) -> None:
        prepare_environment()
        with socket.create_server((_HOST, 0)) as free:
            self.port = int(free.getsockname()[1])
        settings = spark_settings(
            {
                "spark.connect.grpc.binding.address": _HOST,
                "spark.connect.grpc.binding.port": str(self.port),
                # Rows reach the sink in small pieces, so that a test may stop in between.
                "spark.hadoop.fs.viewfs.mounttable.tests.link./files": f"file:{files}",
                "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
            },
            quick_start=True,
        )
        command = [str(resources.files("pyspark") / "bin" / "spark-submit")]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        # A task may fail three times.
        command += ["--master", "local[2,4]", "--class", _CLASS]
        # Its processes import what tests define, and find it where this process does.
        paths = [str(_TESTS), str(_TESTS.parent), os.environ.get("PYTHONPATH", "")]
        python_path = os.pathsep.join(filter(None, paths))
        environment = {
            **os.environ,
            "PYTHONPATH": python_path,
            "PYSPARK_PYTHON": str(_compiled_python(log.with_suffix(".python"), python_path)),
        }
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
        self._guard = SessionGuard(self.process.pid)
        until(self._listens, lambda: f"the server\n{self.output()[-4000:]}")

    def _listens(self) -> bool:
        assert self.process.poll() is None, f"the server has ended:\n{self.output()[-4000:]}"
        return listens(self.process.pid, self.port)

    @property
    def url(self) -> str:
        return f"sc://{_HOST}:{self.port}"

    def output(self) -> str:
        """The output of the server and its Python processes so far."""
        return self._log.read_text(errors="replace")

    def sinks(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if lives(child) and _SINK in " ".join(child.cmdline())]

    def kill_jvm(self) -> None:
        """Sends SIGKILL to the server alone."""
        self.process.kill()
        self.process.wait()

    def kill(self) -> None:
        """Sends SIGKILL to the server and its Python processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._guard.dismiss()


class ConnectService:
    """A server and a client process, started on first use and again after they were killed."""

    def __init__(self, directory: Path) -> None:
        self.files = directory / "files"
        self.files.mkdir()
        self._directory = directory
        self._server: ConnectServer | None = None
        self._ends = ExitStack()
        self._queries: Queries | None = None

    def __enter__(self) -> "ConnectService":
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    @property
    def server(self) -> ConnectServer:
        if self._server is None or self._server.process.poll() is not None:
            self._ends.close()
            self._queries = None
            self._server = ConnectServer(self._directory / "server.log", self.files)
            self._ends.callback(self._server.kill)
        return self._server

    @property
    def queries(self) -> Queries:
        url = self.server.url
        if self._queries is None:
            self._queries = self._ends.enter_context(connect_queries(url))
        return self._queries
