"""Schemas of a registry as columns: decodes and encodes records by what they are written with.

Needs ``spark-eos[schemas]``, on Spark's executors, too.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_eos.schemas.registry import SchemaRegistry

__all__ = ["SchemaRegistry"]


def __getattr__(name: str) -> object:
    # Imported on first use: tasks need a part of it alone, and start in half the time.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("spark_eos.schemas.registry"), name)
