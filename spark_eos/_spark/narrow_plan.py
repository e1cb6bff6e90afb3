"""Checks that a query's plan keeps each source partition's rows in one task, in offset order."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from spark_eos._pyspark_internals import StreamSource, plans_text, unlogged
from spark_eos._spark.columns import SOURCES_OWN
from spark_eos._spark.stream_sources import check_sources, sources_of
from spark_eos.errors import SparkEosError, UnsupportedPipelineError

NOT_A_STREAM: Final = (
    "the DataFrame is not a streaming DataFrame; read it with readStream or sink.read. To write a "
    "batch DataFrame once, save it as files, and read them with readStream and availableNow"
)

# Lines without tree branches continue an operator's text.
_TREE: Final = re.compile(r"[ :]*[+:]- ")
_OPERATOR: Final = re.compile(r"(?:\*\(\d+\) |\* )?[~'!]*([A-Za-z]\w*)(?=[\s(\[,]|$)")
_HEADING: Final = re.compile(r"== \w+ Plan ==$")
_SECTION: Final = re.compile(r"^== (\w[\w ]*) Plan ==$", re.MULTILINE)
_SECTIONS: Final = ("Parsed Logical", "Analyzed Logical", "Optimized Logical", "Physical")
# The end of a plan that Spark has truncated at its limit.
_CUT: Final = re.compile(r"(\.\.\. \d+ more characters|Truncated plan of \d+ characters)\s*$")

# Operators known to keep rows in their partition and in order.
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
# Joins of a stream with a table, below which Spark adds sorts and shuffles of its own.
_SHUFFLING_JOINS: Final = {"CartesianProduct", "ShuffledHashJoin", "SortMergeJoin"}
_STREAM: Final = "StreamingRelation"
_BATCH: Final = "Scan ExistingRDD"
_KAFKA: Final = "KafkaSourceProvider"
_TOPIC: Final = re.compile(r"\btopic#(\d+)")
# A SQL view gives its columns new ids, in the line below the line of the view.
_OF_VIEW: Final = re.compile(r"\bcast\(topic#(\d+) as string\) AS topic#(\d+)")
# The format of RDD.toString. A name may precede it; a cached RDD's name is its plan.
_RDD: Final = re.compile(r"(\S*)\[(\d+)\] at ")
_SOURCE: Final = "DataSourceRDD"
# Spark 4.3 uses the second kind for children with equal partitionings.
_UNIONS: Final = frozenset({"UnionRDD", "SQLPartitioningAwareUnionRDD"})
# RDDs known to keep rows in their partition and in order. All other kinds are refused, including
# new ones in later Spark versions.
_NARROW_RDDS: Final = {
    _SOURCE,
    *_UNIONS,
    "CoalescedRDD",
    "EmptyRDD",
    "EmptyRDDWithPartitions",
    "MapPartitionsRDD",
    "MapPartitionsWithEvaluatorRDD",
    "SQLExecutionRDD",
}
_MEANINGS_OF_RDDS: Final = (
    (
        "Shuffle",
        "a shuffle, for example of a join whose table is not broadcast: use F.broadcast",
    ),
    ("Zipped", "a join whose table is not broadcast: use F.broadcast"),
    ("Cartesian", "a join whose table is not broadcast: use F.broadcast"),
    ("StateStore", "state"),
    ("PythonRDD", "DataFrame.rdd, or rows that are not the batch's; use mapInArrow"),
    ("Checkpoint", "a checkpoint, which hides what came before it; use persist"),
    ("ParallelCollection", "rows that are not the batch's"),
    ("FileScan", "rows of files, which are not the batch's"),
)
_NARROW_ONLY: Final = (
    "Exactly-once needs the rows of a source partition to stay in one task in offset order: "
    "filter, select, explode, UDFs, mapInArrow, broadcast joins and coalesce keep them there. Or "
    "start over with delivery='staged', another group_id and another checkpoint_location"
)


@dataclass(frozen=True)
class Operator:
    depth: int
    name: str
    line: str


def explained(frame: DataFrame) -> dict[str, str]:
    """Return the plans as Spark prints them, by name: ``Optimized Logical``, ``Physical`` etc."""
    # Don't log the plans: they show source options, including secrets that Spark does not redact.
    with unlogged():
        text = plans_text(frame)
    if _CUT.search(text) is not None:
        raise UnsupportedPipelineError(
            "the query's plan can't be checked, because Spark truncates it at "
            "spark.sql.maxPlanStringLength: raise that limit, or unset it"
        )
    parts = _SECTION.split(text)
    plans = dict(zip(parts[1::2], parts[2::2], strict=True))
    if missing := [name for name in _SECTIONS if name not in plans]:
        raise _unknown(f"no {missing[0]} plan", parts[0])
    return plans


def check_stream(frame: DataFrame, plans: Mapping[str, str], *, lineage_follows: bool) -> None:
    if not frame.isStreaming:
        raise UnsupportedPipelineError(NOT_A_STREAM)
    sources = sources_of(frame)
    check_sources(sources)
    reads = _check_narrow(operators(plans["Physical"]), _STREAM)
    if lineage_follows:
        # A common table expression (WITH) is read each time it is used. Spark leaves out a branch
        # that yields no row.
        if reads > len(sources):
            check_sources([*sources, *sources])
    else:
        if reads != len(sources):
            # A Spark Connect client does not see the sources that a view or SQL reads.
            check_sources([])
        check_joins(plans["Optimized Logical"], _STREAM)


def check_sources_seen(plan: str, sources: Sequence[StreamSource]) -> None:
    """Refuse a stream's plan with sources that a view or SQL hides from a Connect client."""
    # If all sources are hidden, the plan doesn't even show that it is a stream.
    tree = operators(plan) if sources else ()
    if not sources or sum(_is_leaf(operator, _STREAM) for operator in tree) > len(sources):
        check_sources([])


def check_batch_plan(plan: Iterable[Operator]) -> int:
    """Refuse a micro-batch job's physical plan if it may move or combine rows; count its reads."""
    return _check_narrow(plan, _BATCH)


def operators_of_tree(plan: Any, depth: int = 0) -> Iterator[Operator]:
    yield Operator(depth, plan["nodeName"].split(maxsplit=1)[0], plan["simpleString"])
    # Spark 4.3 also shows the plan that made an RDD's rows; `check_lineage` covers that part.
    for child in plan["children"] if plan["nodeName"] != _BATCH else ():
        yield from operators_of_tree(child, depth + 1)


def operators(plan: str) -> Iterator[Operator]:
    """Yield a printed plan's operators from the root down, each with its depth in the tree."""
    root = True
    # Skip the initial plan, which Spark prints below the final plan of a persisted frame.
    initial: int | None = None
    for line in plan.strip().splitlines():
        if initial is not None and not line[: initial + 1].strip(" :"):
            continue
        initial = line.find("+-") if line.endswith("+- == Initial Plan ==") else None
        tree = _TREE.match(line)
        depth = tree.end() if tree is not None else 0
        if (depth or root) and _HEADING.match(line, depth) is None:
            if (match := _OPERATOR.match(line, depth)) is None:
                raise _unknown("a line that is not an operator", line)
            yield Operator(depth, match[1], line)
        root = False
    if root:
        raise _unknown("no operators", "")


def _whole_lines(plan: str) -> list[str]:
    """Return a printed plan's operators; an option with several lines, such as a PEM, is one."""
    whole: list[str] = []
    for line in plan.strip().splitlines():
        if whole and _TREE.match(line) is None:
            whole[-1] += f" {line}"
        else:
            whole.append(line)
    return whole


def _unknown(what: str, text: str) -> SparkEosError:
    # Don't show the text itself, which may hold a source's options.
    kind = re.match(r"[\s+:-]*([\w.$]*)", text)
    shown = f" ({kind[1]})" if kind is not None and kind[1] else ""
    return SparkEosError(
        f"the query's plan can't be checked: Spark's printout of it has {what}{shown}. "
        "Please report this with your version of Spark and the output of frame.explain(True)"
    )


def _aside(operator: Operator) -> bool:
    """Return True if the operators below this one add no rows of their own to the result."""
    return (
        operator.name == "BroadcastExchange"
        or operator.name.startswith(("Subquery", "ReusedSubquery"))
        or (operator.name == "ReusedExchange" and "BroadcastExchange" in operator.line)
    )


def _check_narrow(plan: Iterable[Operator], leaf: str) -> int:
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
                    f"the query has a join with a table that shuffles the stream "
                    f"({operator.name} in its plan), so its rows leave their source partitions. "
                    "Broadcast the table, which moves no row of the stream: "
                    "stream.join(F.broadcast(table), ...). If the table is too large to "
                    "broadcast, let ExactlyOnceSink stage the batches (delivery='auto' or 'staged')"
                )
            raise UnsupportedPipelineError(
                f"the query has {meaning or 'an operator that may move rows'} ({operator.name} "
                "in its plan). Exactly-once needs the rows of a source partition to stay in one "
                "task in offset order: filter, select, explode, UDFs, mapInArrow, broadcast joins, "
                "union of topics and coalesce keep them there. ExactlyOnceSink takes any plan if "
                "it may stage the batches (delivery='auto' or 'staged'); or shuffle in a separate "
                "query that writes to an intermediate topic"
            )
    return sum(_is_leaf(operator, leaf) for operator in kept)


def _is_leaf(operator: Operator, leaf: str) -> bool:
    return leaf in operator.line.partition("[")[0]


def _is_narrow(operator: Operator) -> bool:
    if operator.name == "LocalTableScan":
        return "<empty>" in operator.line
    return operator.name in _NARROW


def check_joins(plan: str, leaf: str) -> None:
    """Refuse joins of the stream with a table that has no hint to broadcast it."""
    tree = list(operators(plan))
    for index, operator in enumerate(tree):
        if operator.name != "Join":
            continue
        tail = tree[index + 1 :]
        below = list(itertools.takewhile(lambda other: other.depth > operator.depth, tail))  # noqa: B023
        # The plan of a subquery in the join's condition comes first, and is deeper.
        depth = min(child.depth for child in below)
        sides = [number for number, child in enumerate(below) if child.depth == depth]
        streams = {
            "right" if at < sides[-1] else "left"  # the side of the table
            for at, child in enumerate(below)
            if _is_leaf(child, leaf)
        }
        if any(f"{table}Hint=(strategy=broadcast" not in operator.line for table in streams):
            raise UnsupportedPipelineError(
                "the query joins with a table that has no hint: Spark may broadcast the table in "
                "one batch and shuffle the stream in the next. Wrap the table: "
                "stream.join(F.broadcast(table), ...)"
            )


def check_lineage(lineage: str, batch: int, sources: int) -> None:
    """Refuse a job whose rows may have left their source partitions, or are not the batch's."""
    rdds = _RDD.findall(lineage)
    names, ids = [name for name, _ in rdds], [int(number) for _, number in rdds]
    for name in names:
        if name not in _NARROW_RDDS:
            meaning = next(
                (text for word, text in _MEANINGS_OF_RDDS if word in name), "not a known kind"
            )
            raise UnsupportedPipelineError(
                f"the batch is not written: its lineage has {name or 'an RDD without a name'} "
                f"({meaning}). {_NARROW_ONLY}"
            )
    if _SOURCE not in names:
        return  # Spark knows that the batch has no rows.
    if len(set(ids)) < len(ids) or names.count(_SOURCE) > sources:
        raise UnsupportedPipelineError(
            "the batch is not written: it reads its source more than once (as a union of two "
            "selections of one DataFrame does), so two tasks hold rows of one source partition. To "
            "make several rows from one record, use one select: explode(array(struct(...), "
            "struct(...)))"
        )
    before = names[: ids.index(batch)] if batch in ids else names
    if _SOURCE in before or _UNIONS & set(before):
        raise UnsupportedPipelineError(
            "the batch is not written: it holds rows that are not the micro-batch's own. To add "
            "rows of another topic, read it with sink.read and union it before sink.write"
        )


def with_own_topic_marked(frame: DataFrame) -> DataFrame:
    """Mark the `topic` column for `check_target` if it is a Kafka source's own."""
    if "topic" not in frame.schema.names:
        return frame
    # Spark's column ids show whose column it is; on Connect, only the printed plan has them.
    plan = _whole_lines(explained(frame.select("topic"))["Analyzed Logical"])
    chosen = next((match[1] for line in plan if (match := _TOPIC.search(line))), "")
    for line, below in itertools.pairwise(plan):
        if "- View (" in line:
            chosen = {own: number for number, own in _OF_VIEW.findall(below)}.get(chosen, chosen)
    read = {number for line in plan if _KAFKA in line for number in _TOPIC.findall(line)}
    if chosen not in read:
        return frame
    return frame.withMetadata("topic", dict(SOURCES_OWN))
