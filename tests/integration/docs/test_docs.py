"""What docs/ says in tables is what the code does, and names tests that exist."""

import re
import runpy
from collections.abc import Iterator
from typing import Any

import pytest

from spark_eos._client.error_codes import Code
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import OffsetCommitAnswer
from support.collected import all_tests
from support.jobs import ROOT
from support.tables import table_of, tables

_PROMISE = re.compile(r"\]\(evidence\.md#([\w-]+)\)")
EVIDENCE = runpy.run_path(str(ROOT / "tools" / "evidence.py"))


@pytest.fixture(scope="module")
def collected(request: pytest.FixtureRequest) -> list[Any]:
    """All tests, with what each is marked to prove."""
    return all_tests(request.config)


def _covered(page: str) -> list[dict[str, str]]:
    """The rows of a page that tell which tests cover them."""
    found = [table for table in tables(page) if "covered by" in table.columns]
    return [row for table in found for row in table.rows]


def _proving(row: dict[str, str], collected: list[Any]) -> list[Any]:
    """The tests that prove a row."""
    (promise,) = _PROMISE.findall(row["covered by"])
    return [test for test in collected if promise in test.proves]


def test_the_page_of_evidence_is_up_to_date(collected: list[Any]) -> None:
    assert not EVIDENCE["problems"](collected)
    page = EVIDENCE["PAGE"].read_text(encoding="utf-8")
    assert page == EVIDENCE["page"](collected), "`make docs` brings docs/evidence.md up to date"


def test_marks_and_promises_that_do_not_fit_are_found(collected: list[Any]) -> None:
    tests = [test for test in collected if "broker-away" not in test.proves]
    marks = (("no-such", None), ("error-3", "two"))
    wrong = EVIDENCE["Test"]("test_x.py", "test_y", "[one]", slow=False, marks=marks)
    found = EVIDENCE["problems"]([*tests, wrong])
    for text in (
        "no test proves broker-away",
        "no-such is no promise",
        "no case 'two' of test_x.py::test_y for error-3",
    ):
        assert text in found


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("protocol.md", 80),
        ("acls.md", 12),
        ("guarantees.md", 45),
        ("mirrored.md", 11),
        ("staged.md", 9),
    ],
)
def test_every_row_has_a_test(page: str, least: int, collected: list[Any]) -> None:
    rows = _covered(page)
    assert len(rows) > least
    for row in rows:
        assert _proving(row, collected), f"no test for {row}"


def test_rows_that_rest_on_slow_tests_alone_say_so(collected: list[Any]) -> None:
    for row in (*_covered("guarantees.md"), *_covered("staged.md")):
        proving = _proving(row, collected)
        said = "tests"
        if all(test.slow for test in proving):
            # Which `make test-slow` skips.
            kills = all(test.file == "test_staged_kills.py" for test in proving)
            said = "kill tests" if kills else "slow tests"
        assert row["covered by"].startswith(f"[{said}]("), row


def test_pages_name_no_test() -> None:
    """They link to the page of evidence, but for the files of a change and of code that is run."""
    named = re.compile(r"test_\w+\.py::\w+")
    for path in sorted((ROOT / "docs").glob("*.md")):
        if path != EVIDENCE["PAGE"]:
            assert not named.findall(path.read_text(encoding="utf-8")), path.name


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


def test_the_table_of_apis_has_every_case_and_each_runs_with_every_api(
    collected: list[Any],
) -> None:
    run: dict[str, set[str]] = {}
    for test in collected:
        if test.file == "test_apis.py":
            run.setdefault(test.function, set()).add(test.parameters.strip("[]"))
    assert all(apis == {"foreachBatch", "connect"} for apis in run.values()), run
    rows = table_of("guarantees.md", "APIs").rows
    said = {
        test.function
        for row in rows
        for test in _proving(row, collected)
        if test.file == "test_apis.py"
    }
    assert len(rows) == len(said)
    assert said == run.keys()
