"""Commands in messages can be pasted into a shell and name their cluster."""

import ast
import re
import shlex
from pathlib import Path

import pytest

import spark_eos
from spark_eos._client.commands import Group
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.sources import Sources
from spark_eos.acls import Principal

_CLUSTER = Principal(None, "a:1,b:2")
_PARTITION, _SOURCE = TopicPartition("progress", 3), TopicPartition("orders", 7)
# What a text that is made of pieces would hold.
_HALF = re.compile(r"(kafka-[\w-]+\.sh|spark-eos [\w-]+).* --(group|topic|bootstrap-server|entity)")


@pytest.mark.parametrize("group_id", ["orders", "order processors", "orders;reboot", "'$(x)'"])
def test_a_shell_sees_the_group_as_it_is(group_id: str) -> None:
    group = Group(group_id, _CLUSTER)
    direct, mirrored = Sources(), Sources({_PARTITION: _SOURCE})
    first, _, second = direct.how_to_set(group, {_SOURCE: 5, _PARTITION: "N"}).rpartition("; ")
    assert shlex.split(first) == [
        *("kafka-consumer-groups.sh", "--bootstrap-server", "a:1,b:2", "--group", group_id),
        *("--reset-offsets", "--execute", "--topic", "orders:7", "--to-offset", "5"),
    ]
    assert shlex.split(second)[-3:] == ["progress:3", "--to-offset", "N"]
    assert shlex.split(mirrored.how_to_set(group, {_PARTITION: 5}, "--dry-run")) == [
        *("spark-eos", "progress", "--bootstrap-servers", "a:1,b:2", "--group-id", group_id),
        *("--set", "orders:7=5", "--dry-run"),
    ]


@pytest.mark.slow
def test_no_text_quotes_for_itself() -> None:
    root = Path(spark_eos.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text())
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            texts = [node] if isinstance(node, ast.Constant) else getattr(node, "values", [])
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in docstrings:
                parts = [one.value if isinstance(one, ast.Constant) else "?" for one in texts]
                text = "".join(map(str, parts))
                if _HALF.search(text):
                    found.append(f"{path.relative_to(root)}: {text}")
    assert found == []
