"""``spark-eos abort`` on the real broker."""

import os
import pty
import socket
import subprocess
import time

import pytest

from spark_eos._kafka.list_offsets import end_offsets
from spark_eos._worker.librdkafka_errors import TransactionError
from support.flow import Flow
from support.members import deadline, started
from support.operating import COMMAND, document, one_open, run
from support.writing import rows, transactions


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes CliRunner's input look like a terminal, so that commands show prompts."""
    monkeypatch.setattr("spark_eos._cli.abort._may_ask", lambda: True)


@pytest.mark.usefixtures("terminal")
def test_an_open_transaction_is_shown_and_ended(flow: Flow) -> None:
    began = time.time()
    with one_open(flow) as name:
        (shown,) = document(flow)["open_transactions"]
        assert (shown["transactional_id"], shown["state"]) == (name, "Ongoing")
        assert shown["timeout_ms"] == 60_000
        assert {"topic": flow.target, "partition": 0} in shown["partitions"] or {
            "topic": flow.target,
            "partition": 1,
        } in shown["partitions"]
        # In seconds, not milliseconds; and the transaction's age, not a time since 1970.
        assert 0 <= shown["age_seconds"] <= time.time() - began
        with flow.connections() as connections:
            ends = end_offsets(connections, [flow.target, "no-such-topic"], deadline())
            held = [e.high_watermark - e.last_stable for e in ends.values() if e]
            assert sorted(held) == [0, 1]
        # Other groups, and other prefixes, have nothing to do with it.
        other_group = Flow(flow.broker, "", "")
        for result in (run("abort", flow, "--prefix", "other"), run("abort", other_group, "--yes")):
            assert result.exit_code == 0
            assert result.stdout.startswith("No open transactions of prefix ")
        assert flow.open_transactions() == [name]

        refused = run("abort", flow, answer="n\n")
        assert refused.exit_code == 1
        assert refused.stdout.endswith("Nothing was ended.\n")
        assert flow.open_transactions() == [name]

        result = run("abort", flow, answer="y\n")
        assert result.exit_code == 0, result.output
        assert "a query may be running" in result.stdout
        client = f"client id spark-eos-{socket.gethostname()}-{os.getpid()} on host 127.0.0.1"
        assert f"{client}: 1 member" in " ".join(result.stdout.split())
        assert "End 1 open transaction? [y/N]: y" in result.stdout
        assert result.stdout.endswith("Ended 1 open transaction.\n")
        assert document(flow)["open_transactions"] == []
        with flow.connections() as connections:
            ends = end_offsets(connections, [flow.target], deadline())
            assert all(e and e.high_watermark == e.last_stable for e in ends.values())
        assert sorted(flow.values()) == ["0/0", "0/1"]
        assert flow.committed() == {0: 2}
        again = run("abort", flow)
        assert again.exit_code == 0
        assert again.stdout.startswith("No open transactions of prefix spark-eos and group ")


def test_abort_refuses_to_guess_without_a_terminal(flow: Flow) -> None:
    with one_open(flow) as name:
        result = run("abort", flow)
        assert result.exit_code == 1
        assert "Error: nothing was ended" in result.stderr
        assert "--yes" in result.stderr
        assert flow.open_transactions() == [name]
        assert run("abort", flow, "--yes").exit_code == 0
        assert flow.open_transactions() == []


def test_a_running_query_writes_again_what_was_ended(flow: Flow) -> None:
    with started(flow) as membership, transactions(flow, membership) as writing:
        writing.add(rows(flow, 0, 0))
        writing._producer.records.flush(deadline())
        assert run("abort", flow, "--yes").exit_code == 0
        with pytest.raises(TransactionError) as fenced:
            writing.commit()
        assert fenced.value.again
        assert flow.values() == []
        writing.add(rows(flow, 0, 0))
        writing.commit()
    assert flow.values() == ["0/0"]


@pytest.mark.usefixtures("terminal")
def test_abort_leaves_alone_what_began_after_the_question(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(flow) as membership, transactions(flow, membership) as writing:
        writing.add(rows(flow, 0, 0))

        def next_transaction(question: str) -> bool:
            assert question == "End 1 open transaction?"
            writing.commit()
            writing.add(rows(flow, 0, 1))
            writing._producer.records.flush(deadline())
            return True

        monkeypatch.setattr("spark_eos._cli.abort._agreed", next_transaction)
        result = run("abort", flow)
        assert result.stdout.endswith("They have ended in the meantime.\n")
        writing.commit()
    assert sorted(flow.values()) == ["0/0", "0/1"]


@pytest.mark.slow
def test_abort_asks_on_a_terminal(flow: Flow) -> None:
    command = [COMMAND, "abort"]
    command += ["--bootstrap-servers", flow.bootstrap_servers, "--group-id", flow.group_id]
    with one_open(flow):
        ours, theirs = pty.openpty()
        try:
            os.write(ours, b"y\n")
            result = subprocess.run(
                command, stdin=theirs, capture_output=True, text=True, timeout=240, check=False
            )
        finally:
            os.close(ours)
            os.close(theirs)
        assert result.returncode == 0, result.stderr
        assert "End 1 open transaction? [y/N]:" in result.stdout
        assert flow.open_transactions() == []
