"""Checks that a batch's RDDs keep each source partition's rows in one task."""

import re
from collections.abc import Sequence
from typing import Final

from spark_eos.errors import UnsupportedPipelineError

# The format of RDD.toString. A name may precede it; a cached RDD's name is its plan.
_RDD: Final = re.compile(r"(\S*)\[(\d+)\] at ")
_SOURCE: Final = "DataSourceRDD"
# The second is Spark 4.3's, for children with equal partitionings.
_UNIONS: Final = frozenset({"UnionRDD", "SQLPartitioningAwareUnionRDD"})
# RDDs known to keep rows in their partition and order. All others are refused, including those of
# later Spark versions.
_NARROW: Final = {
    _SOURCE,
    *_UNIONS,
    "CoalescedRDD",
    "EmptyRDD",
    "EmptyRDDWithPartitions",
    "MapPartitionsRDD",
    "MapPartitionsWithEvaluatorRDD",
    "SQLExecutionRDD",
}
_MEANINGS: Final = (
    (
        "Shuffle",
        "a shuffle, such as a join needs if its table is not broadcast: use F.broadcast",
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
    "filter, select, explode, UDFs, mapInArrow and broadcast joins keep them so, coalesce too. Or "
    "begin with delivery='staged', another group_id and another checkpoint_location"
)


def check_lineage(lineage: str, batch: int, sources: int) -> None:
    """Refuses a job whose rows may have left their source partitions, or are not the batch's."""
    names, ids = _parsed(lineage)
    for name in names:
        if name not in _NARROW:
            meaning = next((text for word, text in _MEANINGS if word in name), "not a known kind")
            raise UnsupportedPipelineError(
                f"the batch is not written: there is {name or 'an RDD without a name'} in its "
                f"lineage ({meaning}). {_NARROW_ONLY}"
            )
    if _SOURCE not in names:
        return  # Spark knows that there are no rows.
    if len(set(ids)) < len(ids) or names.count(_SOURCE) > sources:
        raise UnsupportedPipelineError(
            "the batch is not written: it reads its source more than once (as a union of two "
            "selections of one DataFrame does), so two tasks hold rows of one source partition. "
            "Make several rows of one record in one select: explode(array(struct(...), "
            "struct(...)))"
        )
    before = names[: ids.index(batch)] if batch in ids else names
    if _SOURCE in before or _UNIONS & set(before):
        raise UnsupportedPipelineError(
            "the batch is not written: it holds rows that are not the micro-batch's own. To add "
            "rows of another topic, read it with sink.read and union it before sink.write"
        )


def _parsed(lineage: str) -> tuple[Sequence[str], Sequence[int]]:
    found = _RDD.findall(lineage)
    return [name for name, _ in found], [int(number) for _, number in found]
