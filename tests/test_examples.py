"""The examples in docstrings do what they show."""

import doctest
from importlib import import_module

import pytest

# Modules with examples that need no broker and no Spark.
MODULES = [
    "spark_eos.jobs.options",
    "spark_eos.observability.json_logs",
    "spark_eos.observability.listener",
    "spark_eos.observability.on_batch",
    "spark_eos.observability.prometheus",
    "spark_eos.testing.broker_security",
    "spark_eos.verify.findings",
    "spark_eos.verify.places",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    failed, attempted = doctest.testmod(import_module(name), verbose=False)
    assert attempted
    assert not failed
