"""An operator's commands about a query, and a query to run them on."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from spark_eos._cli import main
from support.flow import Flow
from support.members import deadline, started
from support.queries import until
from support.writing import rows, transactions

COMMAND = str(Path(sys.executable).with_name("spark-eos"))


def invoked(arguments: Sequence[str], answer: str | None = None) -> Result:
    """The result of a ``spark-eos`` command, which must not raise."""
    result = CliRunner().invoke(main, arguments, input=answer)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def assert_refused(result: Result, message: str) -> None:
    """Checks that a command has exit status 2, and has printed only a one-line error."""
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def without_layout(text: str) -> str:
    """Printed text, with single spaces instead of line breaks and columns."""
    return " ".join(text.split())


def run(command: str, flow: Flow, *more: str, answer: str | None = None) -> Result:
    """``spark-eos status`` or ``abort`` for the flow's group; it must not raise."""
    settings = dict(flow.kafka)
    where = ["--bootstrap-servers", settings.pop("bootstrap.servers"), "--group-id", flow.group_id]
    for name, value in settings.items():
        where += ["--kafka", f"{name}={value}"]
    return invoked([command, *where, *more], answer)


def document(flow: Flow, *more: str) -> dict[str, Any]:
    """The output of ``spark-eos status --json``."""
    result = run("status", flow, "--json", *more)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@contextmanager
def one_open(flow: Flow) -> Iterator[str]:
    """A group that committed offset 2 of partition 0, and has written another row since."""
    flow.produce(range(5), partition=0)
    with started(flow) as membership, transactions(flow, membership) as writing:
        writing.add(rows(flow, 0, 0, 1))
        writing.commit()
        # The marker reaches the offsets' partition shortly after the commit's answer.
        assert flow.committed()[0] == 2
        writing.add(rows(flow, 0, 2))
        writing._producer.records.flush(deadline())
        (name,) = flow.open_transactions()
        yield name


def check_interrupted(arguments: Sequence[str], directory: Path, number: signal.Signals) -> None:
    """Interrupts ``spark-eos verify`` once it has a database below a new directory."""
    directory.mkdir()
    with subprocess.Popen(
        [COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(directory)},
    ) as process:
        database = "spark-eos-verify-*/records.sqlite"
        until(lambda: list(directory.glob(database)), lambda: "the database")
        process.send_signal(number)
        out, err = process.communicate(timeout=240)
    assert (process.returncode, out, err) == (130, "", "Stopped.\n")
    assert list(directory.iterdir()) == []
