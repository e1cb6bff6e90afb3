"""The ACLs that a query needs, as printed by a command and named in errors."""

import copy
import json

from click.testing import CliRunner

from spark_eos._cli import main
from spark_eos._client.error_codes import refusal
from spark_eos.acls import Principal, Purpose, acls_for, read_group, read_topic
from spark_eos.errors import AuthorizationError
from support.pages import page


def test_the_table_of_acls_is_what_is_granted() -> None:
    usual = ("GROUP", "spark-eos/GROUP/", ["SOURCE"], ["TARGET"])
    granted: dict[str, list[str]] = {}
    for purpose in Purpose:
        for acl in acls_for(purpose, *usual, "PROGRESS", "DLQ"):
            name = f"{acl.name}*" if acl.prefixed else acl.name
            right = f"{acl.operation.value} on {acl.resource.value} {name}"
            granted.setdefault(right, []).append(purpose.value)
    rows = page("docs/acls.md").table("What is needed").rows
    assert {row["right"]: row["for"].split(", ") for row in rows} == granted
    assert len(rows) == len(granted)


_ARGUMENTS = (
    *("acls", "--bootstrap-servers", "kafka:9092", "--principal", "User:it's", "--group-id", "a b"),
    *("--source", "in", "--source", "other", "--target", "out"),
)


def _printed(*more: str) -> str:
    result = CliRunner().invoke(main, [*_ARGUMENTS, *more])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_lines_are_quoted_for_a_shell() -> None:
    lines = _printed("--prefix", "eu", "--command-config", "my admin.properties").splitlines()
    start = (
        "kafka-acls.sh --bootstrap-server kafka:9092 --command-config 'my admin.properties' --add "
        """--allow-principal 'User:it'"'"'s' --operation """
    )
    assert [line.removeprefix(start) for line in lines] == [
        "Read --topic in",
        "Read --topic other",
        "Write --topic out",
        "Read --group 'a b'",
        "Write --resource-pattern-type prefixed --transactional-id eu/a%20b/",
        "DescribeConfigs --topic out",
    ]


def test_what_one_acl_implies_is_not_printed_again() -> None:
    assert _printed("--for", "query", "--for", "status", "--for", "abort") == _printed()


def test_what_is_needed_only_for_a_while_is_marked() -> None:
    before, mark, create = _printed("--progress-topic", "progress").rpartition(
        "# Needed only until the topic exists:\n"
    )
    assert mark
    assert create.endswith(" --operation Create --topic progress\n")
    assert create.count("\n") == 1
    assert " --operation Read --topic progress\n" in before
    assert "Create" not in before
    # Commands about the query create nothing.
    printed = _printed("--progress-topic", "progress", "--for", "status", "--for", "abort")
    assert " --operation Describe --topic progress\n" in printed
    assert "Create" not in printed
    assert "#" not in printed


def test_a_mirrored_query_needs_other_acls_in_each_cluster() -> None:
    source = ["--source-bootstrap-servers", "east:9092", "--source-principal", "User:reader"]
    lines = _printed("--progress-topic", "progress", *source).splitlines()
    there = [line for line in lines if " east:9092 " in line]
    assert [line.partition("User:reader ")[2] for line in there] == [
        f"--operation Read --topic {topic}" for topic in ("in", "other")
    ]
    here = " ".join(line for line in lines if line not in there)
    assert "--topic in " not in here
    assert " --operation Alter --topic progress" in here
    assert "# Needed only until the topic has a partition for each source partition:" in lines
    verifying = _printed("--progress-topic", "progress", *source, "--for", "verify")
    assert " --operation Describe --topic progress\n" in verifying
    # Without another principal, it is the same one.
    assert "User:reader" not in _printed("--progress-topic", "progress", *source[:2])


def test_sparks_own_groups_are_in_the_cluster_that_it_reads() -> None:
    source = ("--progress-topic", "progress", "--source-bootstrap-servers", "east:9092")
    (line,) = _printed(*source, "--for", "deprecated-offset-fetching").splitlines()
    assert "--bootstrap-server east:9092 " in line
    assert line.endswith(" --group spark-kafka-source")


def test_a_mirrored_query_needs_a_progress_topic() -> None:
    result = CliRunner().invoke(main, [*_ARGUMENTS, "--source-bootstrap-servers", "east:9092"])
    assert result.exit_code == 2
    assert "give --progress-topic too" in result.stderr


def test_the_progress_topic_is_one_name() -> None:
    result = CliRunner().invoke(main, [*_ARGUMENTS, "--progress-topic", "progress-*"])
    assert result.exit_code == 1
    assert "--progress-topic='progress-*' contains a *" in result.stderr


def test_acls_as_json() -> None:
    found = json.loads(_printed("--json", "--for", "deprecated-offset-fetching"))
    assert found == [
        {
            "bootstrap_servers": "kafka:9092",
            "principal": "User:it's",
            "operation": "Read",
            "resource_type": "group",
            "pattern_type": "prefixed",
            "name": "spark-kafka-source",
        }
    ]


def test_a_principal_without_its_type_is_refused() -> None:
    result = CliRunner().invoke(main, [*_ARGUMENTS, "--principal", "alice"])
    assert result.exit_code == 2
    assert "'alice' has no type; write it as User:alice" in result.stderr


def test_errors_have_the_acls_that_they_name() -> None:
    acl = read_group("orders")
    error = refusal("x", 30, [acl, read_topic("in")], Principal(None, "kafka:9092"))
    assert isinstance(error, AuthorizationError)
    assert copy.copy(error).missing == (acl,)
    assert str(error).startswith(
        "x: 30 GROUP_AUTHORIZATION_FAILED: the principal of the kafka settings lacks Read on group "
        "'orders'. To grant: kafka-acls.sh "
    )
    assert "--allow-principal User:PRINCIPAL " in str(error)
