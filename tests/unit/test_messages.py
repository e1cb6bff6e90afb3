"""tests/messages.txt has error texts, and only of existing tests."""

import ast

import pytest

from support.jobs import ROOT
from support.messages import golden, says


def test_each_message_belongs_to_a_test() -> None:
    known = {test.partition("[")[0] for test in golden()}
    tests = {
        f"{path}::{node.name}"
        for path in {test.partition("::")[0] for test in known}
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert known - tests == set(), "`make messages` takes them out"


def test_an_error_that_says_something_else_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WRITE_MESSAGES", raising=False)
    with pytest.raises(AssertionError, match="make messages"), says(ValueError):
        raise ValueError("something else")
