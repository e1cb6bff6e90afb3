"""Paths that Spark reads."""

from spark_eos._spark.spark_files import literal_path


def test_a_path_stands_for_itself() -> None:
    assert literal_path("/checkpoints/a[1]") == r"/checkpoints/a\[1\]"
