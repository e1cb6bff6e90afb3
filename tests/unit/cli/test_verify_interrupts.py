"""How `spark-eos verify` ends on a signal, whenever it arrives."""

import signal
from typing import Any

import pytest
from click.testing import CliRunner

from spark_eos._cli import verify as command
from spark_eos._cli.query import end_at

_LINE = ["--bootstrap-servers", "127.0.0.1:1", "--input", "in", "--output", "out"]


@pytest.mark.parametrize(
    ("cause", "status", "words"),
    [(KeyboardInterrupt(), 130, "Stopped.\n"), (ValueError("x"), 1, "")],
    ids=["a signal", "anything else"],
)
def test_a_signal_within_a_c_function(
    monkeypatch: pytest.MonkeyPatch, cause: BaseException, status: int, words: str
) -> None:
    """confluent-kafka turns it into a SystemError, depending on the moment."""

    def interrupted(**_: object) -> None:
        raise SystemError("returned a result with an exception set") from cause

    monkeypatch.setattr(command, "verify", interrupted)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    found = CliRunner().invoke(command.verify_command, _LINE)
    assert (found.exit_code, found.stderr) == (status, words)


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_hangup_that_nohup_ignores(before: Any) -> None:
    earlier = signal.signal(signal.SIGHUP, before)
    try:
        end_at(signal.SIGHUP)
        assert (signal.getsignal(signal.SIGHUP) == signal.SIG_IGN) == (before == signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGHUP, earlier)
