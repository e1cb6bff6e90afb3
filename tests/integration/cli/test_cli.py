import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import SchemaRegistryClient

from spark_eos._jars.jar_sets import spark_kafka_jars
from support.error_classes import without_address
from support.operating import COMMAND
from support.queries import until


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, timeout=240, check=False
    )


def test_help_names_every_command() -> None:
    result = run("--help")
    assert result.returncode == 0
    shown = result.stdout.partition("\nCommands:\n")[2]
    names = re.findall(r"^  (\S+)", shown, re.MULTILINE)
    assert names == [
        *("abort", "acls", "adopt", "broker", "class-archive", "consume", "dead-letters"),
        *("explain", "jars", "progress", "registry", "status", "topics", "verify"),
    ]
    # Each with what it does.
    assert re.findall(r"^  (\S+) +\S", shown, re.MULTILINE) == names


def test_version() -> None:
    assert run("--version").stdout == "spark-eos 0.1.0\n"


def test_an_unknown_command_is_refused() -> None:
    result = run("brokr")
    assert result.returncode == 2
    assert "No such command 'brokr'" in result.stderr


def test_jars_prints_the_jars_and_nothing_else() -> None:
    expected = ",".join(map(str, spark_kafka_jars()))
    result = run("jars")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{expected}\n", "")


def test_jars_for_an_unsupported_pyspark_prints_one_line() -> None:
    result = run("jars", "--pyspark", "3.5.0")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: No Kafka source is known for pyspark 3.5.0; ")
    assert "Traceback" not in result.stderr


def test_jars_starts_without_pyspark_and_kafka_clients() -> None:
    script = (
        "import sys; from spark_eos._cli import main; main(['jars'], standalone_mode=False); "
        "print('MODULES', *sys.modules, file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True
    )
    modules = set(result.stderr.partition("MODULES")[2].split())
    assert "spark_eos._jars.jar_sets" in modules
    assert not {"pyspark", "confluent_kafka", "kafka", "pyarrow"} & modules


def _has_topics(address: str) -> None:
    assert address.startswith("127.0.0.1:")
    topics = AdminClient({"bootstrap.servers": address}).list_topics(timeout=60).topics
    found = {name: len(topic.partitions) for name, topic in topics.items()}
    assert found == {"orders": 4, "prices": 1}
    port = address.rpartition(":")[2]
    second = run("broker", "--port", port)
    assert second.returncode == 1
    assert without_address(second.stderr) == (
        f"Error: Port {port} of 127.0.0.1 is in use: choose another port, or none to use a "
        "free one\n"
    )


def _lists_subjects(url: str) -> None:
    assert url.startswith("http://127.0.0.1:")
    with SchemaRegistryClient({"url": url}) as client:
        assert client.get_subjects() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "works", "number"),
    [
        ("broker --topic orders:4 --topic prices", _has_topics, signal.SIGTERM),
        ("registry", _lists_subjects, signal.SIGINT),
    ],
)
def test_a_server_runs_until_it_is_interrupted(
    command: str, works: Callable[[str], None], number: signal.Signals
) -> None:
    with subprocess.Popen(
        [COMMAND, *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As started by a shell in the background: with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509
    ) as process:
        assert process.stdout is not None
        works(process.stdout.readline().strip())
        children = child_processes(process.pid)
        directories = {Path(f"/proc/{pid}/cwd").readlink() for pid in children} - {Path("/")}
        assert len(directories) == 1
        process.send_signal(number)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0
    assert out == ""
    assert err.endswith("Stopped.\n")
    assert "Traceback" not in err
    assert not directories.pop().exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


@pytest.mark.slow
def test_of_three_nodes_one_may_be_killed() -> None:
    with subprocess.Popen(
        [COMMAND, "broker", "--nodes", "3", "--topic", "orders"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().strip()
        line = process.stderr.readline()
        pids = [int(word) for word in re.findall(r"\d+", line)]
        assert len(pids) == address.count("127.0.0.1:") == 3
        os.kill(pids[0], signal.SIGKILL)
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        until(lambda: len(admin.list_topics(timeout=60).brokers) == 2, lambda: "its end", 60)
        assert admin.list_topics("orders", timeout=60).topics["orders"].partitions[0].leader != 1
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[1].endswith("Stopped.\n")
    assert process.returncode == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def child_processes(pid: int) -> list[int]:
    children = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                stat = (process / "stat").read_text(encoding="utf-8")
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                children.append(int(process.name))
    return children
