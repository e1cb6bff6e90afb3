"""Type checkers see everything that ``spark_eos`` exports."""

import ast
from pathlib import Path

import spark_eos


def _seen_by_type_checkers() -> set[str]:
    tree = ast.parse(Path(spark_eos.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = (node for node in block.body if isinstance(node, ast.ImportFrom))
    return {name.asname or name.name for node in imports for name in node.names}


def test_each_public_name_has_a_type() -> None:
    assert _seen_by_type_checkers() == {*spark_eos.__all__}


def test_each_public_name_is_there() -> None:
    for name in spark_eos.__all__:
        assert getattr(spark_eos, name).__name__ == name
