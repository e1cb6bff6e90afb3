"""The number of partitions that a task may read, by Spark version."""

import pytest

from spark_eos._spark.batch_job import _most_partitions


@pytest.mark.parametrize(
    ("spark_version", "most"),
    [
        ("4.0.5", 64),
        ("4.1.4", 64),
        ("4.2.0", None),
        ("4.10.1", None),
        ("5.0.0-SNAPSHOT", None),
    ],
)
def test_a_task_holds_few_consumers_where_it_keeps_them(
    spark_version: str, most: int | None
) -> None:
    assert _most_partitions(spark_version) == most
