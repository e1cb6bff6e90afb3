"""Schemas of a registry as columns: decodes and encodes records of Avro, Protobuf and JSON.

Needs ``spark-eos[schemas]``, on Spark's executors too.
"""

from spark_eos.schemas.registry import SchemaRegistry

__all__ = ["SchemaRegistry"]
