"""Records the state of everything around a query when the harness has waited in vain.

A trial that fails without a violation is often a fault of the harness or the machine. The record
shows which: what brokers answer to a new client, and what every process does.
"""

import faulthandler
import json
import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psutil

from chaos.processes import children, command, jvm_of
from spark_eos._cli.status import as_json
from spark_eos._client.settings import ClientSettings
from spark_eos._status.status import ask_status

if TYPE_CHECKING:
    from chaos.stage import Stage

# Seconds for the brokers' answers, and for a JVM's thread dump.
_STATUS_SECONDS: Final = 20.0
_DUMP_SECONDS: Final = 10.0


def record_stall(stage: "Stage", why: str) -> str:
    """Write what is known now into files of the trial's directory; return a note that names one."""
    nodes = {str(node): node.pid for node in stage.broker.nodes if node.is_running}
    driver = stage.query.pid if stage.starts else os.getpid()
    jvms = [*nodes.values(), *jvm_of(driver)]
    facts: dict[str, Callable[[], Any]] = {
        "load average": os.getloadavg,
        "memory": lambda: psutil.virtual_memory()._asdict(),
        "nodes": lambda: {name: _known(partial(_process, pid)) for name, pid in nodes.items()},
        "driver": lambda: [_known(partial(_process, pid)) for pid in (driver, *children(driver))],
        "watcher": stage.watcher.last_readings,
        "produced": lambda: stage.source.produced,
        "answers to a new client": lambda: _status(stage),
        "threads of JVMs": lambda: {pid: _known(partial(_threads, pid)) for pid in jvms},
    }
    at = {"why": why, "seconds since 1970": time.time(), "monotonic": time.monotonic()}
    # A trial may wait in vain, and its judgement fail afterwards.
    number = 1 + len([*stage.directory.glob("stall-*.json")])
    file = stage.directory / f"stall-{number}.json"
    file.write_text(json.dumps(at | {name: _known(ask) for name, ask in facts.items()}, indent=1))
    with file.with_suffix(".stacks").open("w") as stacks:
        faulthandler.dump_traceback(stacks)
    return f"{why}; what was known then: {file}"


def _known(ask: Callable[[], Any]) -> Any:
    """Return a fact, or the error of asking for it."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - an error is a fact as well
        return f"{type(error).__name__}: {error}"


def _process(pid: int) -> dict[str, Any]:
    return {"pid": pid, "state": psutil.Process(pid).status(), "command": command(pid)[:200]}


def _status(stage: "Stage") -> Any:
    of_source = {"bootstrap.servers": stage.source_servers} if stage.mirrored else None
    status = ask_status(
        ClientSettings({"bootstrap.servers": stage.servers}),
        stage.name,
        "spark-eos",
        _STATUS_SECONDS,
        "--timeout",
        source_client=ClientSettings.of_source(of_source),
        targets=[*stage.targets, *stage.dead_letter_topics],
    )
    return json.loads(as_json(status))


def _threads(pid: int) -> str:
    dump = ["jcmd", str(pid), "Thread.print"]
    ran = subprocess.run(dump, capture_output=True, text=True, timeout=_DUMP_SECONDS, check=False)
    return ran.stdout or ran.stderr
