"""What docs/ says in tables is what the code does, and names tests that exist."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from spark_eos.client.error_codes import Code
from spark_eos.kafka.protocol import TxnOffsetCommitRequest
from spark_eos.kafka.transactions import OffsetCommitAnswer
from support.collected import all_tests
from support.tables import table_of, tables

_REFERENCE = re.compile(r"`(test_\w+\.py)::(\w+)(?:\[([^`]*))?`")


@pytest.fixture(scope="module")
def collected(request: pytest.FixtureRequest) -> dict[str, bool]:
    """All tests, by the names of their files, with their parameters' ids; is each slow?"""
    return all_tests(request.config)


def _covered(page: str) -> list[dict[str, str]]:
    """The rows of a page that tell which tests cover them."""
    found = [table for table in tables(page) if "covered by" in table.columns]
    return [row for table in found for row in table.rows]


def _named(reference: tuple[str, str, str], collected: dict[str, bool]) -> list[str]:
    """The tests that a page means."""
    file, name, parameter = reference
    stem = f"{file}::{name}"
    return [
        test
        for test in collected
        if test == stem or (test.startswith(f"{stem}[") and parameter in test[len(stem) :])
    ]


@pytest.mark.parametrize(
    ("page", "least"), [("protocol.md", 80), ("acls.md", 12), ("guarantees.md", 45)]
)
def test_every_row_has_a_test(page: str, least: int, collected: dict[str, bool]) -> None:
    rows = _covered(page)
    assert len(rows) > least
    for row in rows:
        references = _REFERENCE.findall(row["covered by"])
        assert references, f"no test for {row}"
        for reference in references:
            assert _named(reference, collected), f"there is no test {reference}"


def test_rows_that_rest_on_slow_tests_alone_say_so(collected: dict[str, bool]) -> None:
    for row in _covered("guarantees.md"):
        references = _REFERENCE.findall(row["covered by"])
        named = [test for one in references for test in _named(one, collected)]
        target = ""
        if all(collected[test] for test in named):
            # Which `make test-slow` skips.
            kills = all(file == "test_staged_kills.py" for file, _, _ in references)
            target = "test-kills" if kills else "test-slow"
        said = re.findall(r"in `make (test-\w+)` only", row["covered by"])
        assert said == ([target] if target else []), row


def test_the_error_table_says_what_the_code_does() -> None:
    table = table_of("protocol.md", "Errors of TxnOffsetCommit, per partition")
    codes = {row["code"]: row for row in table.rows}
    for code, row in codes.items():
        answer = OffsetCommitAnswer(6, {("a", 0): 12_345 if code == "other" else int(code)})
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
    told = {row["field"]: (row["type"], row["versions"]) for row in table.rows}
    assert told == dict(_fields(TxnOffsetCommitRequest.json["fields"]))


def _fields(fields: list[dict[str, Any]], within: str = "") -> Iterator[tuple[str, Any]]:
    for field in fields:
        name = within + field["name"]
        if "fields" in field:
            yield from _fields(field["fields"], f"{name}[].")
        else:
            nullable = "nullable " if "nullableVersions" in field else ""
            yield name, (nullable + field["type"], field["versions"])


def test_the_table_of_apis_has_every_case_and_every_api(collected: dict[str, bool]) -> None:
    table = table_of("guarantees.md", "APIs")
    fronts = {"foreachBatch": "foreachBatch", "connect": "Spark Connect"}
    run: dict[str, set[str]] = {}
    for test in collected:
        if found := re.fullmatch(r"test_fronts\.py::(\w+)\[(.*)\]", test):
            run.setdefault(found[1], set()).add(fronts.get(found[2], found[2]))
    said = {
        row["test"].strip("`"): {front for front in table.columns[2:] if row[front] == "run"}
        for row in table.rows
    }
    assert len(said) == len(table.rows)
    assert said == run
    assert table.columns[2:] == ["foreachBatch", "Spark Connect"]
