"""Starts queries with Spark's writer or the sink's."""

from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_eos import ExactlyOnceWriter

Writer = DataStreamWriter | ExactlyOnceWriter
