"""What is recorded when the harness has waited in vain, on a real broker."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos import stall
from support.flow import Flow
from support.members import started


def _recorded(flow: Flow, directory: Path) -> dict[str, Any]:
    stage: Any = SimpleNamespace(
        broker=flow.broker,
        servers=flow.bootstrap_servers,
        name=flow.group_id,
        targets=[flow.target],
        dead_letter_topics=[],
        mirrored=False,
        starts=0,
        directory=directory,
        source=SimpleNamespace(produced=3),
        watcher=SimpleNamespace(last_readings=list),
    )
    note = stall.record_stall(stage, "nothing came")
    text, _, file = note.partition("; what was known then: ")
    assert text == "nothing came"
    found: dict[str, Any] = json.loads(Path(file).read_text())
    return found


@pytest.mark.slow
def test_what_brokers_and_processes_do_is_recorded(
    flow_alone: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall, "_STATUS_SECONDS", 3.0)
    monkeypatch.setattr(stall, "_DUMP_SECONDS", 3.0)
    flow_alone.produce(range(3))
    with started(flow_alone):
        found = _recorded(flow_alone, tmp_path)
    (node,) = found["nodes"].values()
    assert node["state"] in {"sleeping", "running"}
    assert "kafka" in found["threads of JVMs"][str(node["pid"])]
    assert found["answers to a new client"]["brokers"][0]["id"] == 1
    assert "test_stall" in (tmp_path / "stall-1.stacks").read_text()
    flow_alone.broker.pause()
    try:
        found = _recorded(flow_alone, tmp_path)
    finally:
        flow_alone.broker.resume()
    # The first record is still there.
    assert {file.name for file in tmp_path.glob("stall-*.json")} == {"stall-1.json", "stall-2.json"}
    (node,) = found["nodes"].values()
    assert node["state"] == "stopped"
    assert found["answers to a new client"].startswith("DeadlineExceededError")
    assert found["threads of JVMs"][str(node["pid"])].startswith("TimeoutExpired")
