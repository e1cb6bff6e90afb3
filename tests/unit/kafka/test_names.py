"""Names that could be confused with others: in ACLs, in transactional ids, on a terminal."""

from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from spark_eos import ExactlyOnceSink, errors
from spark_eos._cli import main
from spark_eos._kafka.cluster import _split
from spark_eos._kafka.groups import DescribedMember
from spark_eos._kafka.open_transactions import OpenTransaction
from spark_eos._kafka.topic_cache import why_impossible
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactional_ids import id_prefix
from spark_eos._status.tables import transactions
from spark_eos.acls import Operation
from support.sinks import arguments

OPTIONS: dict[str, Any] = {
    "kafka": {"bootstrap.servers": "localhost:9092"},
    "group_id": "group",
    "topic": "out",
    "checkpoint_location": "checkpoint-*",
}


def test_prefixes_do_not_nest() -> None:
    """ACLs, or fencing, for one query's prefix would also apply to another query."""
    assert id_prefix("a/b", "c").startswith(id_prefix("a", "b"))
    with pytest.raises(
        errors.ConfigurationError, match=r"transactions\.id_prefix='a/b' contains a /"
    ):
        ExactlyOnceSink(**arguments(**OPTIONS, transactional_id_prefix="a/b"))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("group_id", "group_id"),
        ("topic", "topic"),
        ("transactional_id_prefix", r"transactions\.id_prefix"),
    ],
)
@pytest.mark.parametrize("text", ["*", "orders-*"])
def test_no_name_is_a_wildcard_of_acls(name: str, shown: str, text: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=rf"{shown}='.*\*' contains a \*.*KIP-290"):
        ExactlyOnceSink(**arguments(**{**OPTIONS, name: text}))


def test_a_checkpoint_is_no_name_of_kafkas() -> None:
    ExactlyOnceSink(**OPTIONS)


@pytest.mark.parametrize("name", ["--group-id", "--source", "--target", "--prefix"])
def test_no_acl_for_all_names_is_printed(name: str) -> None:
    chosen = {"--group-id": "g", "--source": "in", "--target": "out", "--prefix": "p", name: "*"}
    line = ["acls", "--bootstrap-servers", "x:1", "--principal", "User:a"]
    result = CliRunner().invoke(main, [*line, *(word for pair in chosen.items() for word in pair)])
    assert result.exit_code == 1
    assert "kafka-acls.sh" not in result.output
    assert "contains a *" in result.output


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/", "orders\n", "é", "a" * 250])
def test_names_that_no_topic_can_have(name: str) -> None:
    assert why_impossible(name, Operation.WRITE) is not None
    line = ["topics", "--bootstrap-servers", "x:1", "--create", name]
    assert CliRunner().invoke(main, line).exit_code == 2


def test_addresses_are_read_as_kafkas_clients_read_them() -> None:
    found = _split("SSL://Broker-1:9093, [::1]:9092,")
    assert found == {("broker-1", "9093"), ("::1", "9092")}


# Terminals -----------------------------------------------------------------------------------

EVIL = "evil\x1b[2J\x1b]0;owned\x07\r\n\x9b31m\u202e[red]"


def test_a_transactional_id_and_a_host_move_no_cursor() -> None:
    console = Console(width=200, record=True, highlight=False)
    one = OpenTransaction(EVIL, "Ongoing", None, 60_000, 1, 0, (TopicPartition("in", 0),))
    console.print(transactions([one], 10.0))
    shown = console.export_text()
    assert "owned" in shown
    assert all(line.isprintable() for line in shown.splitlines())
    member = DescribedMember("id", None, "client", EVIL, None, None)
    assert "owned" in str(member)
    assert str(member).isprintable()
