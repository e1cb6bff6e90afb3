"""Only `spark_eos._pyspark_internals` uses PySpark's private names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADAPTER = ROOT / "spark_eos" / "_pyspark_internals.py"

# Names of ours may be like these: `self._plan` is.
ATTRIBUTES = {
    "_active_spark_context",
    "_instantiatedSession",
    "_explain_string",
    "_gateway",
    "_jc",
    "_jdf",
    "_jo",
    "_jreader",
    "_jsc",
    "_jsparkSession",
    "_jsq",
    "_jvm",
    "_jwrite",
    "_plan",
    "_python_includes",
    # Methods of Spark's classes in Java, and of Connect's client.
    "activeStreamingQueries",
    "explainString",
    "getLatestExecutionContext",
    "lastExecution",
    "newHadoopConf",
    "queryExecution",
    "release_session",
    "sessionState",
    "sharedState",
    "toDebugString",
    "toRdd",
}
MODULES = (
    "py4j.java_gateway",
    "pyspark.cloudpickle",
    "pyspark.core",
    "pyspark.java_gateway",
    "pyspark.serializers",
    "pyspark.sql.classic",
    "pyspark.sql.connect",
    "pyspark.sql.pandas",
    "pyspark.sql.utils",
    "pyspark.worker",
)
TEXTS = (
    "PYSPARK_GATEWAY_PORT",
    "SPARK_CONNECT_LOCAL_URL",
    "_asyncProgressTracking",
    "sql.streaming.queryId",
    *MODULES,
)


def _used(tree: ast.Module) -> Iterator[str]:
    """A module's uses of PySpark's private names, other than in docstrings."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name) if name in ATTRIBUTES:
                yield name
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=name), *_]) if (
                name in ATTRIBUTES
            ):
                yield str(name)
            case ast.Import(names=names):
                yield from (one.name for one in names if one.name.startswith(MODULES))
            case ast.ImportFrom(module=str(module)) if module.startswith(MODULES):
                yield module
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield from (one for one in TEXTS if text.startswith(one))


@pytest.mark.parametrize("directory", ["spark_eos", "jobs"])
def test_nothing_else_uses_them(directory: str) -> None:
    modules = [path for path in (ROOT / directory).rglob("*.py") if path != ADAPTER]
    assert modules
    found = {
        str(path.relative_to(ROOT)): names
        for path in modules
        if (names := sorted(set(_used(ast.parse(path.read_text(encoding="utf-8"))))))
    }
    assert not found, "use spark_eos._pyspark_internals"


def test_the_adapters_own_names_are_known() -> None:
    tree = ast.parse(ADAPTER.read_text(encoding="utf-8"))
    ours = {"_context", "_execution", "_info", "_mapper"}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    private = {name for name in attributes if name.startswith("_") and not name.startswith("__")}
    assert private - ours <= ATTRIBUTES
    assert {"_jvm", "_plan", "_python_includes"} <= set(_used(tree))
