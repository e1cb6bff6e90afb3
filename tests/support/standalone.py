"""A standalone Spark cluster: a master and workers in their own processes."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.error import URLError

import pyspark

from spark_eos._jars.jar_sets import spark_kafka_jars
from spark_eos.testing.broker_properties import free_ports
from support.killable_process import KillableProcess
from support.queries import until
from support.service import Service

_HOME = Path(pyspark.__file__).parent
_HOST = "127.0.0.1"


class Standalone(Service):
    """A cluster whose executors have one core each.

    There is a worker for each of ``hosts``; ``on_host`` returns a command's prefix on a host.
    """

    def __init__(
        self,
        directory: Path,
        hosts: Sequence[str] = (_HOST, _HOST),
        *,
        master: str = _HOST,
        on_host: Callable[[str], Sequence[str]] = lambda _host: (),
    ) -> None:
        super().__init__()
        self._directory = directory
        self._hosts = hosts
        self._master_host = master
        self._on_host = on_host
        ports = free_ports()
        self._page = f"http://{master}:{ports.client}"
        self.master = f"spark://{master}:{ports.internal}"
        self._master_arguments = ("--port", str(ports.internal), "--webui-port", str(ports.client))

    def _begin(self) -> None:
        self._start("master", self._master_host, *self._master_arguments)
        for number, host in enumerate(self._hosts):
            work = self._directory / f"worker-{number}"
            arguments = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
            self._start("worker", host, *arguments, "--work-dir", str(work), self.master)
        until(self._all_alive, self._logs, 120)

    def executors(self) -> set[str]:
        """The workers that have started an executor."""
        return {path.parts[-3] for path in self._directory.glob("worker-*/app-*/*")}

    def submit(
        self,
        script: Path,
        *options: str,
        environment: Mapping[str, str],
        timeout: float = 240,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a script with ``spark-submit``, from its own directory."""
        here = Path(sys.executable).parent
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "PYTHONPATH"))}
        return subprocess.run(
            [
                *(str(here / "spark-submit"), "--master", self.master),
                *("--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"),
                *("--jars", ",".join(map(str, spark_kafka_jars())), *options, str(script)),
            ],
            cwd=script.parent,
            env={
                **kept,
                "SPARK_LOCAL_IP": _HOST,
                "PATH": f"{here}{os.pathsep}{kept['PATH']}",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def _start(self, name: str, host: str, *arguments: str) -> None:
        kind = f"org.apache.spark.deploy.{name}.{name.capitalize()}"
        program = (str(_HOME / "bin" / "spark-class"), kind, "--host", host, *arguments)
        process = KillableProcess(
            [*self._on_host(host), *program],
            log=self._directory / f"{name}.log",
            directory=self._directory,
            environment={"SPARK_HOME": str(_HOME), "SPARK_DAEMON_MEMORY": "256m"},
        )
        self._stack.enter_context(process)

    def _all_alive(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._page}/json/", timeout=5) as answer:  # noqa: S310
                return bool(answer.read().count(b'"state" : "ALIVE"') == len(self._hosts))
        except (URLError, OSError):
            return False

    def _logs(self) -> str:
        logs = (self._directory / f"{name}.log" for name in ("master", "worker"))
        return "".join(log.read_text()[-2000:] for log in logs if log.exists())
