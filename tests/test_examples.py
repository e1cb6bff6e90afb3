"""The examples in docstrings do what they show."""

import doctest
from importlib import import_module

import pytest

# Modules with examples that need no broker and no Spark.
MODULES = [
    "spark_eos.datasource.options",
    "spark_eos.spark.source",
    "spark_eos.spark.stopping",
    "spark_eos.spark.stream_sources",
    "spark_eos.worker.records",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    failed, attempted = doctest.testmod(import_module(name), verbose=False)
    assert attempted
    assert not failed
