"""Printed plans of batches that ran before they were written."""

import pytest

from spark_eos._spark.narrow_plan import check_batch_plan, check_joins, operators
from spark_eos.errors import SparkEosError, UnsupportedPipelineError

# Of a batch that was joined, persisted and counted.
PERSISTED = """\
AdaptiveSparkPlan isFinalPlan=false
+- MapInArrow <lambda>(id#2L, n#1)#198, [id#199L, n#201], false
   +- InMemoryTableScan [id#2L, n#1]
         +- InMemoryRelation [id#2L, n#1], StorageLevel(disk, memory, deserialized, 1 replicas)
               +- AdaptiveSparkPlan isFinalPlan=true
                  +- == Final Plan ==
                     ResultQueryStage 1
                     +- *(2) BroadcastHashJoin [id#2L], [id#0L], Inner, BuildRight, false, false
                        :- *(2) Filter isnotnull(id#2L)
                        :  +- *(2) Scan ExistingRDD[id#2L]
                        +- BroadcastQueryStage 0
                           +- BroadcastExchange HashedRelationBroadcastMode(List(input[0])), [id=1]
                              +- *(1) Filter isnotnull(id#0L)
                                 +- *(1) Scan ExistingRDD[id#0L,n#1]
                  +- == Initial Plan ==
                     BroadcastHashJoin [id#2L], [id#0L], Inner, BuildRight, false, false
                     :- Filter isnotnull(id#2L)
                     :  +- Scan ExistingRDD[id#2L]
                     +- BroadcastExchange HashedRelationBroadcastMode(List(input[0])), [id=1]
                        +- Filter isnotnull(id#0L)
                           +- Scan ExistingRDD[id#0L,n#1]
"""


def test_a_persisted_batch_that_has_run_is_read_once() -> None:
    assert check_batch_plan(operators(PERSISTED)) == 1
    first = "".join(f":  {line}\n" for line in PERSISTED.splitlines())
    union = f"Union\n:- {first[3:]}+- LocalTableScan <empty>, [id#2L]\n"
    assert check_batch_plan(operators(union)) == 1
    with pytest.raises(UnsupportedPipelineError, match="Sort"):
        check_batch_plan(operators(union.replace("LocalTableScan <empty>", "Sort")))


@pytest.mark.parametrize("operator", ["Sort [id#2L ASC], false, 0", "AQEShuffleRead coalesced"])
def test_what_moved_rows_in_a_persisted_batch_is_refused(operator: str) -> None:
    with pytest.raises(UnsupportedPipelineError, match=operator.split(maxsplit=1)[0]):
        check_batch_plan(operators(PERSISTED.replace("Filter isnotnull(id#2L)", operator, 1)))


def test_what_follows_an_initial_plan_counts() -> None:
    beside = "   +- *(3) Scan ExistingRDD[id#9L]\n"
    assert check_batch_plan(operators(PERSISTED + beside)) == 2
    with pytest.raises(UnsupportedPipelineError, match="Sort"):
        check_batch_plan(operators(PERSISTED + "   +- *(3) Sort [id#9L ASC], false, 0\n"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "org.apache.spark.sql.AnalysisException: Queries with 'secret'",
            "org.apache.spark.sql.An",
        ),
        ("Project [id#2L]\n+- java.lang.Error: secret", "java.lang.Error"),
        ("Project [id#2L]\n+- ?", "not an operator"),
        ("", "no operators"),
    ],
)
def test_what_is_no_plan_is_no_operator(text: str, shown: str) -> None:
    with pytest.raises(SparkEosError, match="can't be checked") as info:
        list(operators(text))
    assert shown in str(info.value)
    assert "secret" not in str(info.value)
    assert not isinstance(info.value, UnsupportedPipelineError)


# As Spark Connect prints it, with the hint for the table on the right, which an outer join needs.
JOINED = """\
Project [id#1L, name#3]
+- Join LeftOuter, (id#1L = id#2L), rightHint=(strategy=broadcast)
   :- Filter isnotnull(id#1L)
   :  +- StreamingRelationV2 kafka
   +- Relation [id#2L,name#3] parquet
"""


def test_only_a_hint_for_the_table_keeps_the_stream_in_place() -> None:
    check_joins(JOINED, "StreamingRelation")
    swapped = JOINED.replace("rightHint", "leftHint")
    with pytest.raises(UnsupportedPipelineError, match="has no hint"):
        check_joins(swapped, "StreamingRelation")
    relation, stream = "Relation [id#2L,name#3] parquet", "StreamingRelationV2 kafka"
    other_side = swapped.replace(relation, "?").replace(stream, relation).replace("?", stream)
    check_joins(other_side, "StreamingRelation")
