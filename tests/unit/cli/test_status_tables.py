"""Tables of "spark-eos status": ages, durations, ranges."""

import socket

import pytest
from click.testing import CliRunner

from spark_eos._cli import main
from spark_eos._kafka.open_transactions import OpenTransaction
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._status.tables import duration, ranges


def test_unusable_clusters_and_settings_are_one_line() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{unused.getsockname()[1]}"
        where = ["--bootstrap-servers", server, "--timeout", "0.5"]
        for command in (
            *("status --group-id g", "abort --group-id g", "topics", "consume orders"),
            "dead-letters list --topic orders",
        ):
            result = CliRunner().invoke(main, [*command.split(), *where])
            assert result.exit_code == 1
            assert result.stderr.startswith(f"Error: no broker of bootstrap.servers='{server}' ")
            assert "could be reached within 0.5 s (--timeout)" in result.stderr
            assert result.stderr.count("\n") == 1
    result = CliRunner().invoke(main, ["topics", *where, "--kafka", "security.protocol=tls"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: kafka['security.protocol'] must be one of ")


def test_an_age_that_the_broker_does_not_report_is_unknown() -> None:
    one = OpenTransaction("id", "Ongoing", None, 60_000, 1, 0, ())
    assert one.age(5.0) is None
    began = OpenTransaction("id", "Ongoing", 2_000, 60_000, 1, 0, ())
    assert began.age(5.0) == 3.0
    assert began.age(1.0) == 0.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (187_300, "2 d 4 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_ranges() -> None:
    found = [
        TopicPartition("b", 0),
        TopicPartition("a", 3),
        TopicPartition("a", 0),
        TopicPartition("a", 1),
        TopicPartition("a", 2),
        TopicPartition("a", 7),
    ]
    assert ranges(found) == "a 0-3,7; b 0"
