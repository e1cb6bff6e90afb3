"""A real HDFS, and a real YARN of two nodes; each daemon has its own process."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from getpass import getuser
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from xml.sax.saxutils import escape

import pyspark
import pytest

from spark_eos._jars.class_archive import JVM_FLAGS
from spark_eos._jars.jar_sets import locked_jars, spark_kafka_jars
from spark_eos._jars.java import find_java
from spark_eos._jars.lockfile import parse_lock
from spark_eos.testing.broker_properties import free_numbers
from support.killable_process import KillableProcess
from support.queries import until
from support.service import Service
from support.stored_files import HDFS_HOST, HDFS_PAGES

_LOCK: Final = "hadoop-3.5.0"
_SPARKS_JARS: Final = Path(pyspark.__file__).parent / "jars"
_HOST: Final = "127.0.0.1"
# Spark treats nodes with one address as one host, and starts no copy of a task on the same host.
_NODES: Final = (_HOST, "127.0.0.2")
_DAEMONS: Final = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "resourcemanager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "nodemanager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
}
_HEAP: Final = "192m"
EXECUTOR: Final = "YarnCoarseGrainedExecutorBackend"
"""Part of the command line of an executor in a container."""
APPLICATION_MASTER: Final = "org.apache.spark.deploy.yarn.ApplicationMaster"
"""Part of the command line of a driver in a container."""


def hadoop_jars(lock: str = _LOCK) -> list[Path]:
    """The jars that a part of Hadoop needs besides Spark's; skips the test if versions differ."""
    version = lock.rpartition("-")[2]
    if not (_SPARKS_JARS / f"hadoop-client-api-{version}.jar").exists():
        pytest.skip(f"this Spark has another Hadoop than {version}")
    file = Path(__file__).with_name("locks") / f"{lock}.json"
    return locked_jars(parse_lock(lock, file.read_text(encoding="utf-8")))


class Hadoop(Service):
    """HDFS, and YARN if wanted, on loopback addresses.

    YARN has two nodes with 4 GiB each; each daemon takes about 200 MB.
    """

    def __init__(self, directory: Path, *, yarn: bool, applications: int = 1) -> None:
        super().__init__()
        self._directory = directory
        self._yarn = yarn
        self._node_mb = 4096 * applications
        self._port, *ports = free_numbers(6)
        self._pages = f"{HDFS_PAGES}:{self._port}"
        self._managers = [f"{_HOST}:{port}" for port in ports]
        self.configuration = directory / "conf"  # HADOOP_CONF_DIR
        self._nodes: list[KillableProcess] = []

    @property
    def hdfs(self) -> str:
        """URI of the file system, without a trailing slash."""
        return f"hdfs://{HDFS_HOST}:{self._port}"

    @property
    def home(self) -> str:
        """URI of the directory that relative paths start from."""
        return f"{self.hdfs}/user/{getuser()}"

    def _begin(self) -> None:
        jars = [self.configuration, *hadoop_jars(), _SPARKS_JARS / "*"]
        self._classes = os.pathsep.join(map(str, jars))
        # Comes last on exit: containers have their own sessions, so ending YARN does not end them.
        self._stack.callback(self._kill_containers)
        self._configure()
        subprocess.run(
            [*self._command("namenode"), "-format", "-nonInteractive"],
            capture_output=True,
            check=True,
            timeout=240,
        )
        self._start("namenode")
        self._start("datanode")
        if self._yarn:
            self._start("resourcemanager")
            self._nodes = [self._start_node(number) for number in range(len(_NODES))]
        until(self._ready, self._logs, 240)

    def containers(self, kind: str = "") -> dict[int, Path]:
        """Container processes whose command lines contain ``kind``, and their directories."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                place = (process / "cwd").readlink()
                command = (process / "cmdline").read_bytes().decode(errors="replace")
                # Exclude the shells that started them.
                shell = kind and command.startswith("/bin/bash")
                if (
                    place.is_relative_to(self._directory / "nodes")
                    and kind in command
                    and not shell
                ):
                    found[int(process.name)] = place
        return found

    def _kill_containers(self) -> None:
        # Two passes, because the first may miss processes that are being started.
        for _ in range(2):
            for pid in self.containers():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    @contextmanager
    def lost_node(self, container: Path) -> Iterator[None]:
        """Kills the node manager of a container's node; starts it again when the block ends.

        Meanwhile, the node's containers keep running, and YARN can't end them.
        """
        number = int(container.relative_to(self._directory / "nodes").parts[0])
        self._nodes[number].kill()
        try:
            yield
        finally:
            self._kill_containers()
            self._nodes[number] = self._start_node(number)
            until(self._ready, self._logs, 240)

    def logs(self, application: str) -> str:
        """The output of an application's containers."""
        files = sorted(self._directory.glob(f"nodes/*/logs/{application}/*/std*"))
        return "".join(f"\n--- {file}\n{file.read_text(errors='replace')}" for file in files)

    @property
    def settings(self) -> dict[str, str]:
        """Settings of an application with an executor on each node."""
        return {
            # Otherwise, each application would upload the jars.
            "spark.yarn.jars": f"local:{_SPARKS_JARS}/*",
            "spark.yarn.am.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            # So much that YARN puts one executor of an application on each node.
            "spark.executor.memoryOverhead": "1700m",
            "spark.executor.instances": "2",
            "spark.ui.enabled": "false",
            "spark.driver.defaultJavaOptions": " ".join(JVM_FLAGS),
            "spark.executor.defaultJavaOptions": " ".join(JVM_FLAGS),
            "spark.yarn.am.extraJavaOptions": " ".join(JVM_FLAGS),
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": _HOST,
        }

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a process that submits applications."""
        return {
            "HADOOP_CONF_DIR": str(self.configuration),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_HOME": str(_SPARKS_JARS.parent),
        }

    def submit(
        self,
        script: Path,
        *arguments: str,
        options: Sequence[str],
        directory: Path,
        log: Path,
        environment: Mapping[str, str],
    ) -> KillableProcess:
        """``spark-submit`` in a directory, with this YARN as its master; a context manager."""
        here = Path(sys.executable).parent
        return KillableProcess(
            [
                # Otherwise, the executors would get this process's PYTHONPATH.
                *("env", "-u", "PYTHONPATH"),
                *(str(here / "spark-submit"), "--master", "yarn"),
                *(
                    word
                    for name, value in self.settings.items()
                    for word in ("--conf", f"{name}={value}")
                ),
                *("--jars", ",".join(map(str, spark_kafka_jars())), *options),
                *(str(script), *arguments),
            ],
            log=log,
            directory=directory,
            environment={
                **self.environment,
                "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
                **environment,
            },
        )

    def _command(self, daemon: str, **overrides: str) -> list[str]:
        flags = (f"-Xmx{_HEAP}", *JVM_FLAGS, "-Dlog4j2.level=INFO", "-cp", self._classes)
        given = [word for pair in overrides.items() for word in ("-D", "=".join(pair))]
        return [str(find_java().executable), *flags, _DAEMONS[daemon], *given]

    def _start(self, name: str, command: Sequence[str] = ()) -> KillableProcess:
        java_home = find_java().executable.resolve().parent.parent
        process = KillableProcess(
            command or self._command(name),
            log=self._directory / f"{name}.log",
            directory=self._directory,
            # YARN runs its containers with this Java.
            environment={"JAVA_HOME": str(java_home)},
        )
        return self._stack.enter_context(process)

    def _start_node(self, number: int) -> KillableProcess:
        place = self._directory / "nodes" / str(number)
        of_its_own = {
            **dict.fromkeys(
                ("address", "localizer.address", "webapp.address"), f"{_NODES[number]}:0"
            ),
            "local-dirs": str(place / "local"),
            "log-dirs": str(place / "logs"),
        }
        named = {f"yarn.nodemanager.{name}": value for name, value in of_its_own.items()}
        return self._start(f"node-{number}", self._command("nodemanager", **named))

    def _configure(self) -> None:
        self.configuration.mkdir()
        data = self._directory / "data"
        datanode = ("address", "http.address", "ipc.address")
        managers = ("", "scheduler.", "resource-tracker.", "admin.", "webapp.")
        files = {
            "core-site": {"fs.defaultFS": self.hdfs, "hadoop.tmp.dir": str(data)},
            "hdfs-site": {
                "dfs.replication": "1",
                "dfs.namenode.http-address": self._pages,
                **{f"dfs.datanode.{name}": f"{_HOST}:0" for name in datanode},
            },
            "yarn-site": {
                **{
                    f"yarn.resourcemanager.{name}address": address
                    for name, address in zip(managers, self._managers, strict=True)
                },
                # The time until YARN gives up a silent node.
                "yarn.nm.liveness-monitor.expiry-interval-ms": "30000",
                "yarn.scheduler.minimum-allocation-mb": "128",
                "yarn.nodemanager.resource.memory-mb": str(self._node_mb),
                # Containers get what they request, however full this machine's disk is.
                "yarn.nodemanager.disk-health-checker.enable": "false",
                "yarn.nodemanager.pmem-check-enabled": "false",
                "yarn.nodemanager.vmem-check-enabled": "false",
            },
            "capacity-scheduler": {
                "yarn.scheduler.capacity.root.queues": "default",
                "yarn.scheduler.capacity.root.default.capacity": "100",
                "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9",
            },
        }
        for name, properties in files.items():
            lines = (
                f"<property><name>{name}</name><value>{escape(value)}</value></property>"
                for name, value in properties.items()
            )
            text = f"<configuration>{''.join(lines)}</configuration>"
            (self.configuration / f"{name}.xml").write_text(text, encoding="utf-8")

    def _ready(self) -> bool:
        try:
            bean = "Hadoop:service=NameNode,name=FSNamesystemState"
            (state,) = _json(f"http://{self._pages}/jmx?qry={bean}")["beans"]
            if state["NumLiveDataNodes"] != 1 or state["FSState"] != "Operational":
                return False
            if not self._yarn:
                return True
            found = _json(f"http://{self._managers[-1]}/ws/v1/cluster/nodes?states=RUNNING")[
                "nodes"
            ]
            return len((found or {}).get("node", [])) == len(_NODES)
        except (URLError, OSError, ValueError):
            return False

    def _logs(self) -> str:
        logs = sorted(self._directory.glob("*.log"))
        return "".join(f"\n--- {log.name}\n{log.read_text()[-3000:]}" for log in logs)


def _json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310
        return json.load(answer)
