"""Checks that a query's plan keeps each source partition's rows in one task, in offset order."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from spark_eos._pyspark_internals import StreamSource, connect_plan, messages, plans_text
from spark_eos._spark.stream_sources import check_sources, sources_of
from spark_eos._spark.unlogged import unlogged
from spark_eos.errors import SparkEosError, UnsupportedPipelineError

# Lines without tree branches continue an operator's text.
_TREE: Final = re.compile(r"[ :]*[+:]- ")
_OPERATOR: Final = re.compile(r"(?:\*\(\d+\) |\* )?[~'!]*([A-Za-z]\w*)(?=[\s(\[,]|$)")
_HEADING: Final = re.compile(r"== \w+ Plan ==$")
_SECTION: Final = re.compile(r"^== (\w[\w ]*) Plan ==$", re.MULTILINE)
_SECTIONS: Final = ("Parsed Logical", "Analyzed Logical", "Optimized Logical", "Physical")
# How Spark ends what is longer than its limit.
_CUT: Final = re.compile(r"(\.\.\. \d+ more characters|Truncated plan of \d+ characters)\s*$")

# Operators known to keep rows in their partition and order.
_NARROW: Final = {
    "AdaptiveSparkPlan",
    "ArrowEvalPython",
    "ArrowEvalPythonUDTF",
    "BatchEvalPython",
    "BatchEvalPythonUDTF",
    "BroadcastHashJoin",
    "BroadcastNestedLoopJoin",
    "BroadcastQueryStage",
    "Coalesce",
    "CollectMetrics",
    "ColumnarToRow",
    "DeserializeToObject",
    "EmptyRelation",
    "EventTimeWatermark",
    "Expand",
    "Filter",
    "Generate",
    "InMemoryRelation",
    "InMemoryTableScan",
    "InputAdapter",
    "MapElements",
    "MapInArrow",
    "MapInPandas",
    "MapPartitions",
    "Project",
    "PythonMapInArrow",
    "ResultQueryStage",
    "RowToColumnar",
    "Sample",
    "SerializeFromObject",
    "TableCacheQueryStage",
    "Union",
    "WholeStageCodegen",
}
_MEANINGS: Final = {
    "Exchange": "a shuffle",
    "Aggregate": "an aggregation",
    "StateStore": "state",
    "Deduplicate": "state (dropDuplicates)",
    "SymmetricHashJoin": "state (a stream-stream join)",
    "GroupsWithState": "state",
    "TransformWithState": "state",
    "Limit": "a limit",
    "Sort": "a sort",
    "Window": "a window function",
}
# Of a stream with a table; below them Spark sorts and shuffles on its own account.
_SHUFFLING_JOINS: Final = {"CartesianProduct", "ShuffledHashJoin", "SortMergeJoin"}
_STREAM: Final = "StreamingRelation"
_BATCH: Final = "Scan ExistingRDD"


@dataclass(frozen=True)
class Operator:
    """A line of a plan."""

    depth: int
    name: str
    line: str


def explained(frame: DataFrame) -> dict[str, str]:
    """The plans as Spark prints them, by name: ``Optimized Logical``, ``Physical`` and so on."""
    # Not logged: plans show source options, including secrets that Spark does not redact.
    with unlogged():
        text = plans_text(frame)
    if _CUT.search(text) is not None:
        raise UnsupportedPipelineError(
            "the query's plan can't be checked, since Spark cuts it at "
            "spark.sql.maxPlanStringLength: raise that, or unset it"
        )
    parts = _SECTION.split(text)
    plans = dict(zip(parts[1::2], parts[2::2], strict=True))
    if missing := [name for name in _SECTIONS if name not in plans]:
        raise _unknown(f"no {missing[0]} plan", parts[0])
    return plans


def check_stream(frame: DataFrame, plans: Mapping[str, str], *, lineage_follows: bool) -> None:
    """Refuses a streaming DataFrame whose plan can't be written exactly once."""
    if not frame.isStreaming:
        raise UnsupportedPipelineError(
            "the DataFrame is not a streaming DataFrame; read it with sink.read"
        )
    sources = sources_of(frame)
    check_sources(sources)
    found = _check_narrow(operators(plans["Physical"]), _STREAM)
    if found != len(sources):
        # What WITH names is read each time that it is used. A client of Spark Connect does not see
        # what a view or SQL reads.
        check_sources([*sources, *sources] if lineage_follows and found > len(sources) else [])
    if not lineage_follows:
        _check_joins(plans["Optimized Logical"], _STREAM)


def check_sources_seen(plan: str, sources: Sequence[StreamSource]) -> None:
    """Refuses a stream's physical plan with sources that a client of Spark Connect does not see.

    A view or SQL hides what it reads from the client, but not from the plan.
    """
    # If all are hidden, the plan doesn't show that it streams either.
    found = operators(plan) if sources else ()
    if not sources or sum(_is_leaf(one, _STREAM) for one in found) > len(sources):
        check_sources([])


def check_batch_plan(plan: Iterable[Operator]) -> int:
    """Refuses the physical plan of a micro-batch's job in which rows may move, or are combined."""
    return _check_narrow(plan, _BATCH)


def check_remote_batch(frame: DataFrame) -> None:
    """Refuses a micro-batch of Spark Connect whose plan can't be written exactly once.

    `remote_relations` shows whether the frame is made of the micro-batch itself.
    """
    plans = explained(frame)
    found = check_batch_plan(operators(plans["Physical"]))
    if found != 1:
        raise UnsupportedPipelineError(
            f"the batch is not written: its plan reads the micro-batch {found} times (as a union "
            "of two selections of it does), or other rows too, so two tasks may hold rows of one "
            "source partition. Make several rows of one record in one select, "
            "explode(array(struct(...), struct(...))), of the batch itself, not of a view or SQL"
        )
    _check_joins(plans["Optimized Logical"], "LogicalRDD")


def remote_shape(frame: Any) -> bytes:
    """A fingerprint of a Spark Connect DataFrame's plan, equal for batches with the same plan."""
    relation = connect_plan(frame)
    for part in messages(relation, "Relation"):
        part.common.Clear()
    for part in messages(relation, "CachedRemoteRelation"):
        part.relation_id = ""
    text = relation.SerializeToString(deterministic=True)
    return bytes(text)


def remote_relations(frame: Any) -> list[str]:
    """Ids of the server's relations that a Spark Connect DataFrame reads.

    A micro-batch has its own id. The result of ``checkpoint`` or ``localCheckpoint`` has another
    one, and does not show what it was made of.
    """
    relation = connect_plan(frame)
    return [part.relation_id for part in messages(relation, "CachedRemoteRelation")]


def reads_by_name(frame: Any) -> bool:
    """Whether a Spark Connect DataFrame reads a name that may mean other data in the next batch."""
    relation = connect_plan(frame)
    return any(True for name in ("Read", "SQL") for _ in messages(relation, name))


def operators_of_tree(plan: Any, depth: int = 0) -> Iterator[Operator]:
    """The operators of a plan that `spark_eos._pyspark_internals.PlanReader` has read."""
    yield Operator(depth, plan["nodeName"].split(maxsplit=1)[0], plan["simpleString"])
    # Spark 4.3 shows what made the rows of an RDD, which is for the lineage to tell.
    for child in plan["children"] if plan["nodeName"] != _BATCH else ():
        yield from operators_of_tree(child, depth + 1)


def operators(plan: str) -> Iterator[Operator]:
    """A printed plan's operators from the root down, each with its depth in the tree.

    Raises:
        SparkEosError: It is no plan.
    """
    root = True
    # What is persisted and has run shows the plan that ran, and then the one it was made from.
    initial: int | None = None
    for line in plan.strip().splitlines():
        if initial is not None and not line[: initial + 1].strip(" :"):
            continue
        initial = line.find("+-") if line.endswith("+- == Initial Plan ==") else None
        tree = _TREE.match(line)
        depth = tree.end() if tree is not None else 0
        if (depth or root) and _HEADING.match(line, depth) is None:
            if (found := _OPERATOR.match(line, depth)) is None:
                raise _unknown("a line that is no operator", line)
            yield Operator(depth, found[1], line)
        root = False
    if root:
        raise _unknown("nothing", "")


def _unknown(what: str, text: str) -> SparkEosError:
    # Not the text itself, which may hold a source's options.
    kind = re.match(r"[\s+:-]*([\w.$]*)", text)
    shown = f" ({kind[1]})" if kind is not None and kind[1] else ""
    return SparkEosError(
        f"the query's plan can't be checked: where Spark prints it there is {what}{shown}. "
        "Please report it with your version of Spark, and what frame.explain(True) shows"
    )


def _aside(operator: Operator) -> bool:
    """Whether the operators below add no rows of their own to the result."""
    return (
        operator.name == "BroadcastExchange"
        or operator.name.startswith(("Subquery", "ReusedSubquery"))
        or (operator.name == "ReusedExchange" and "BroadcastExchange" in operator.line)
    )


def _check_narrow(plan: Iterable[Operator], leaf: str) -> int:
    """Refuses a physical plan in which rows may move."""
    kept: list[Operator] = []
    below: int | None = None
    for operator in plan:
        if below is None or operator.depth <= below:
            kept.append(operator)
            below = operator.depth if _aside(operator) else None
        elif leaf == _STREAM and _is_leaf(operator, leaf):
            raise UnsupportedPipelineError(
                "the query broadcasts the stream itself, so its rows leave their source "
                "partitions: broadcast the other side of the join"
            )
    for operator in kept:
        if not (_is_leaf(operator, leaf) or _aside(operator) or _is_narrow(operator)):
            meaning = next((m for word, m in _MEANINGS.items() if word in operator.name), None)
            if operator.name in _SHUFFLING_JOINS:
                raise UnsupportedPipelineError(
                    f"the query holds a join with a table that shuffles the stream "
                    f"({operator.name} in its plan), so its rows leave their source partitions. "
                    "Broadcast the table, which moves no row of the stream: "
                    "stream.join(F.broadcast(table), ...). For a table that is too large for "
                    "that, let ExactlyOnceSink stage the batches (delivery='auto' or 'staged')"
                )
            raise UnsupportedPipelineError(
                f"the query holds {meaning or 'an operator that may move rows'} ({operator.name} "
                "in its plan). Exactly-once needs the rows of a source partition to stay in one "
                "task in offset order: filter, select, map, mapInArrow, broadcast joins, union of "
                "topics and coalesce keep them so. ExactlyOnceSink takes any plan if it may stage "
                "the batches (delivery='auto' or 'staged'); or shuffle in a separate query, to an "
                "intermediate topic"
            )
    return sum(_is_leaf(operator, leaf) for operator in kept)


def _is_leaf(operator: Operator, leaf: str) -> bool:
    return leaf in operator.line.partition("[")[0]


def _is_narrow(operator: Operator) -> bool:
    if operator.name == "LocalTableScan":
        return "<empty>" in operator.line
    return operator.name in _NARROW


def _check_joins(plan: str, leaf: str) -> None:
    found = list(operators(plan))
    for index, operator in enumerate(found):
        if operator.name != "Join" or "Hint=(strategy=broadcast" in operator.line:
            continue
        for below in found[index + 1 :]:
            if below.depth <= operator.depth:
                break
            if _is_leaf(below, leaf):
                raise UnsupportedPipelineError(
                    "the query joins without a hint: Spark may broadcast the table in one batch "
                    "and shuffle the stream in the next. Wrap the table: "
                    "stream.join(F.broadcast(table), ...)"
                )
