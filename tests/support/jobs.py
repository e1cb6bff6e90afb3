"""The jobs in jobs/, which is not a package."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from spark_eos._jars.jar_sets import spark_kafka_jars

ROOT = Path(__file__).parent.parent.parent
# The arguments that every job needs.
GIVEN = [
    *("--bootstrap-servers", "h:1"),
    *("--group-id", "g"),
    *("--source", "a"),
    *("--target", "b"),
    *("--checkpoint-location", "c"),
]


def job(name: str) -> ModuleType:
    """Import a job's module by its file name."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "jobs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def submit(name: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Runs a job with spark-submit in its own session; its output is a pipe."""
    here = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [
        *(str(here / "spark-submit"), "--master", "local[2]"),
        *("--properties-file", "conf/spark-defaults.conf"),
        *("--jars", ",".join(map(str, spark_kafka_jars()))),
        *(f"jobs/{name}.py", *arguments),
    ]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        # spark-submit itself sends the job's stderr to its stdout.
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
