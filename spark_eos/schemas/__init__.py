"""Decodes records into columns and encodes columns as records, with a registry's schemas.

Needs ``spark-eos[schemas]``, on Spark's executors, too.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_eos.schemas.registry import SchemaRegistry

__all__ = ["SchemaRegistry"]


def __getattr__(name: str) -> object:
    # Import the registry module on first use. Tasks don't need it, and start in half the time.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("spark_eos.schemas.registry"), name)
