"""Checks that a query's plan keeps each source partition's rows in one task, in offset order."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from spark_eos._pyspark_internals import StreamSource, connect_plan, messages, plans_text
from spark_eos._spark.stream_sources import check_sources, sources_of
from spark_eos._spark.unlogged import unlogged
from spark_eos.errors import ConfigurationError, UnsupportedPipelineError

# Lines without tree branches continue an operator's text.
_LINE: Final = re.compile(r"(?P<tree>[ :]*[+:]- )?(?:\*\(\d+\) |\* )?[~']?(?P<name>[A-Za-z]\w*)")
_SECTION: Final = re.compile(r"^== (\w[\w ]*) Plan ==$", re.MULTILINE)
_SECTIONS: Final = ("Analyzed Logical", "Optimized Logical", "Physical")
_OPERATOR: Final = re.compile(r"(?:\*\(\d+\) |\* )?[~']?[A-Z]")
_CUT: Final = re.compile(r"(?:\.\.\. \d+ more characters|Truncated plan of \d+ characters)\s*\Z")
# How Spark cuts a plan's text short, and what suffices for those of queries.
_LENGTH: Final = "spark.sql.maxPlanStringLength"
_FIELDS: Final = "spark.sql.debug.maxToStringFields"
_ENOUGH: Final = {_LENGTH: 1 << 24, _FIELDS: 25}

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
    with unlogged(), whole_plans(frame.sparkSession):
        parts = _SECTION.split(whole(plans_text(frame)))
    plans = dict(zip(parts[1::2], parts[2::2], strict=True))
    for name in _SECTIONS:
        if name not in plans:
            raise UnsupportedPipelineError(
                f"the query can't be checked: Spark shows no {name} plan"
            )
    return plans


@contextlib.contextmanager
def whole_plans(session: SparkSession) -> Iterator[None]:
    """Lets Spark print plans as a whole, where the session's settings would cut them short."""
    before = {name: session.conf.get(name, None) for name in _ENOUGH}
    # A number may have a unit, such as 4k.
    cut = {
        name: text
        for name, text in before.items()
        if text and not (text.isdigit() and int(text) >= _ENOUGH[name])
    }
    for name in cut:
        session.conf.set(name, str(_ENOUGH[name]))
    try:
        yield
    finally:
        for name, text in cut.items():
            session.conf.set(name, text)


def is_cut(text: str) -> bool:
    """Whether Spark has cut the text of plans short."""
    return _CUT.search(text) is not None


def whole(text: str) -> str:
    """The text of plans, which must not have been cut short."""
    if is_cut(text):
        raise ConfigurationError(
            f"the query can't be checked, since Spark cuts its plan short: raise {_LENGTH}"
        )
    return text


def check_stream(frame: DataFrame, plans: Mapping[str, str], *, lineage_follows: bool) -> None:
    """Refuses a streaming DataFrame whose plan can't be written exactly once."""
    if not frame.isStreaming:
        raise UnsupportedPipelineError(
            "the DataFrame is not a streaming DataFrame; read it with sink.read"
        )
    sources = sources_of(frame)
    check_sources(sources)
    found = _check_narrow(plans["Physical"], _STREAM)
    if found > len(sources) and lineage_follows:
        raise UnsupportedPipelineError(
            "the query reads its source more than once (as a WITH clause does that is used twice), "
            "so two tasks would hold rows of one source partition: make several rows of one record "
            "in one select, explode(array(struct(...), struct(...)))"
        )
    if found != len(sources):
        # A client of Spark Connect does not see what a view or SQL reads.
        check_sources([])
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


def check_batch_plan(plan: str) -> int:
    """Refuses the physical plan of a micro-batch's job in which rows may move, or are combined."""
    return _check_narrow(plan, _BATCH)


def check_remote_batch(frame: DataFrame) -> None:
    """Refuses a micro-batch of Spark Connect whose plan can't be written exactly once.

    `remote_relations` shows whether the frame is made of the micro-batch itself.
    """
    plans = explained(frame)
    found = check_batch_plan(plans["Physical"])
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


def operators(plan: str) -> Iterator[Operator]:
    """A plan's operators from the root down, each with its depth in the tree."""
    root = True
    first = plan.strip().partition("\n")[0]
    if not _OPERATOR.match(first):
        # Spark prints an exception where it has no plan.
        raise UnsupportedPipelineError(
            "the query can't be checked, since Spark shows no plan of it, but: "
            f"{first.partition(':')[0][:100]!r}"
        )
    # What is persisted and has run shows the plan that ran, and then the one it was made from.
    initial: int | None = None
    for line in plan.strip().splitlines():
        if initial is not None and not line[: initial + 1].strip(" :"):
            continue
        initial = line.find("+-") if line.endswith("+- == Initial Plan ==") else None
        found = _LINE.match(line)
        if found is not None and (found["tree"] or root):
            yield Operator(len(found["tree"] or ""), found["name"], line)
        root = False


def _aside(operator: Operator) -> bool:
    """Whether the operators below add no rows of their own to the result."""
    return (
        operator.name == "BroadcastExchange"
        or operator.name.startswith(("Subquery", "ReusedSubquery"))
        or (operator.name == "ReusedExchange" and "BroadcastExchange" in operator.line)
    )


def _check_narrow(plan: str, leaf: str) -> int:
    """Refuses a physical plan in which rows may move."""
    kept: list[Operator] = []
    below: int | None = None
    for operator in operators(plan):
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
