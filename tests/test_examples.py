"""Examples in docstrings that need no broker: they print what they say."""

import doctest
from importlib import import_module

import pytest

_MODULES = (
    "spark_eos.datasource.options",
    "spark_eos.spark.source",
    "spark_eos.spark.stopping",
    "spark_eos.spark.stream_sources",
    "spark_eos.worker.records",
)


@pytest.mark.parametrize("name", _MODULES)
def test_examples_do_what_they_say(name: str) -> None:
    found = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0
    assert found.failed == 0
