"""Spark's daemon of Python workers, with what each of them imports: its forks have it already."""

from pyspark.daemon import manager

import spark_eos._spark.dead_letter_functions
import spark_eos._worker.task  # noqa: F401

if __name__ == "__main__":
    manager()
