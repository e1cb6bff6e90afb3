"""The tables in docs/ say what the code does, and name tests that exist."""

import re
from collections.abc import Iterator
from typing import Any

from spark_eos._client.error_codes import Code
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import OffsetCommitAnswer
from support.jobs import ROOT
from support.tables import table_of, tables

_TEST = re.compile(r"`(test_\w+(?:\.py)?)`")


def test_every_row_of_the_guarantees_names_its_tests() -> None:
    rows = [row for table in tables("guarantees.md") for row in table.rows if "test" in row]
    assert len(rows) > 50
    for row in rows:
        assert _TEST.findall(row["test"]), row


def test_the_tests_that_pages_name_exist() -> None:
    paths = ROOT.glob("tests/**/test_*.py")
    files = {path.name: path.read_text(encoding="utf-8") for path in paths}
    tests = set(re.findall(r"^def (test_\w+)", "\n".join(files.values()), re.MULTILINE))
    for page in (ROOT / "docs").glob("*.md"):
        named = set(_TEST.findall(page.read_text(encoding="utf-8")))
        assert named <= tests | files.keys(), page.name


def test_the_error_table_says_what_the_code_does() -> None:
    table = table_of("protocol.md", "Errors of TxnOffsetCommit, per partition")
    codes = {row["code"]: row for row in table.rows}
    for code, row in codes.items():
        answer = OffsetCommitAnswer(
            6, {TopicPartition("a", 0): 12_345 if code == "other" else int(code)}
        )
        assert row["verdict"] == answer.verdict.name.lower(), row
        if code.isdigit() and code != "0":
            assert str(answer) == f"a-0: {code} {row['name']}"
    # Every code that this answer may have and that is not simply refused has a row.
    elsewhere = {
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.INVALID_TRANSACTION_TIMEOUT,
        Code.UNSTABLE_OFFSET_COMMIT,
        Code.UNRELEASED_INSTANCE_ID,
        Code.TRANSACTIONAL_ID_NOT_FOUND,
        Code.UNKNOWN_SERVER_ERROR,
        Code.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED,
    }
    assert {str(int(code)) for code in set(Code) - elsewhere} <= codes.keys()


def test_the_field_table_is_the_schema() -> None:
    table = table_of("protocol.md", "TxnOffsetCommit")
    documented = {row["field"]: (row["type"], row["versions"]) for row in table.rows}
    assert documented == dict(_fields(TxnOffsetCommitRequest.json["fields"]))


def _fields(fields: list[dict[str, Any]], within: str = "") -> Iterator[tuple[str, Any]]:
    for field in fields:
        name = within + field["name"]
        if "fields" in field:
            yield from _fields(field["fields"], f"{name}[].")
        else:
            nullable = "nullable " if "nullableVersions" in field else ""
            yield name, (nullable + field["type"], field["versions"])


def test_the_table_of_apis_names_every_case() -> None:
    file = (ROOT / "tests/integration/spark/test_apis.py").read_text(encoding="utf-8")
    cases = re.findall(r"^def (test_\w+)\((.*)", file, re.MULTILINE)
    # Each runs with every API.
    assert all(arguments.startswith("api: Api") for _, arguments in cases)
    rows = table_of("guarantees.md", "APIs").rows
    named = [name for row in rows for name in _TEST.findall(row["test"])]
    assert sorted(named) == sorted(name for name, _ in cases)
