"""Spark's daemon of Python workers, with what each of them imports: its forks have it already."""

from pyspark.daemon import manager

if __name__ == "__main__":
    manager()
