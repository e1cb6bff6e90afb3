"""``spark-eos status`` in a terminal: any width, and repeated updates."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from spark_eos._kafka.topic_partition import TopicPartition
from support import groups
from support.flow import Flow
from support.members import started
from support.operating import COMMAND, document, run

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
_PATIENCE = 60
_FAR = 123_456_789_012


class _Terminal:
    """``spark-eos status`` in a pseudo-terminal of a given width."""

    def __init__(self, width: int, flow: Flow, *more: str) -> None:
        self._shown, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
        self.process = subprocess.Popen(
            [COMMAND, "status", *_where(flow), *more],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env={**environment, "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(inside)
        self.text = ""

    def read(self, until: str | None = None, times: int = 1) -> str:
        """The displayed text without control sequences: to the end, or until it contains a text."""
        end = time.monotonic() + _PATIENCE
        while until is None or self.text.count(until) < times:
            assert time.monotonic() < end, self.text
            if not select.select([self._shown], [], [], 0.2)[0]:
                continue
            try:
                data = os.read(self._shown, 1 << 16)
            except OSError:  # the other end is closed
                data = b""
            if not data:
                break
            self.text += _CONTROL.sub("", data.decode())
        assert until is None or self.text.count(until) >= times, self.text
        return self.text

    def __enter__(self) -> "_Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(_PATIENCE)
        os.close(self._shown)


def _where(flow: Flow) -> list[str]:
    return ["--bootstrap-servers", flow.bootstrap_servers, "--group-id", flow.group_id]


@pytest.fixture
def far_flow(flow: Flow) -> Flow:
    """A group with realistic names and offsets."""
    flow.name = f"orders-of-customers-by-region-{flow.name}"
    flow.broker.create_topic(flow.source, flow.partitions)
    with started(flow):  # which waits for the group's coordinator
        pass
    groups.set_offsets(
        flow.bootstrap_servers, flow.group_id, {TopicPartition(flow.source, 0): _FAR}
    )
    return flow


@pytest.mark.parametrize("width", [80, 160])
def test_digits_and_names_are_whole(far_flow: Flow, width: int) -> None:
    with _Terminal(width, far_flow) as terminal:
        shown = terminal.read()
        assert terminal.process.wait(_PATIENCE) == 0
    assert max(map(len, shown.splitlines())) <= width
    assert f"{_FAR:,}" in shown
    assert "…" not in shown
    # Names are whole, or in pieces that still say something.
    assert shown.count(far_flow.source[:24]) >= far_flow.partitions
    if width == 160:
        assert shown.count(far_flow.source) >= far_flow.partitions
    for name in ("TxnOffsetCommit", "ConsumerGroupHeartbeat", "transaction.version"):
        assert name in shown


def test_the_lag_of_a_group_without_offsets_is_unknown(flow: Flow) -> None:
    flow.produce(range(10))
    with started(flow):
        assert document(flow)["lag"] is None
        assert re.search(r"members?, lag unknown$", run("status", flow).stdout, re.MULTILINE)


def test_watching_ends_with_ctrl_c(far_flow: Flow) -> None:
    headline = f"Group {far_flow.group_id}"
    with _Terminal(160, far_flow, "--watch", "0.2") as terminal:
        terminal.read(until=headline, times=3)
        groups.set_offsets(
            far_flow.bootstrap_servers,
            far_flow.group_id,
            {TopicPartition(far_flow.source, 0): 77_777},
        )
        terminal.read(until="77,777")
        terminal.process.send_signal(signal.SIGINT)
        shown = terminal.read()
        assert terminal.process.wait(_PATIENCE) == 0
    assert "Traceback" not in shown
    assert "Aborted" not in shown


@pytest.mark.slow
def test_watching_needs_no_seconds_and_a_terminal_neither(far_flow: Flow, tmp_path: Path) -> None:
    with _Terminal(100, far_flow, "--watch") as terminal:
        terminal.read(until="Group ", times=2)
    line = [COMMAND, "status", *_where(far_flow), "--watch", "0.1", "--json"]
    errors = tmp_path / "errors"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(line, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        lines = []
        for text in process.stdout:
            lines.append(text)
            if lines.count("}\n") == 2:
                break
        process.send_signal(signal.SIGTERM)
    assert lines.count("}\n") == 2, errors.read_text()
    first = lines.index("}\n") + 1
    documents = [json.loads("".join(part)) for part in (lines[:first], lines[first:])]
    assert [found["group"]["id"] for found in documents] == [far_flow.group_id] * 2
    assert errors.read_text() == ""


@pytest.mark.parametrize("seconds", ["0", "soon"])
def test_invalid_intervals(flow: Flow, seconds: str) -> None:
    result = run("status", flow, "--watch", seconds)
    assert result.exit_code == 2
    assert "--watch" in result.stderr
