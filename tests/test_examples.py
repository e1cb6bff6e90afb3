"""The examples in docstrings do what they show."""

import doctest
from importlib import import_module

import pytest

# Modules with examples that need no broker and no Spark.
MODULES = [
    "spark_eos.batch.batch_report",
    "spark_eos.batch.data_loss",
    "spark_eos.batch.plan",
    "spark_eos.batch.writer_settings",
    "spark_eos.driver.assigned_partitions",
    "spark_eos.driver.checkpoint_files",
    "spark_eos.driver.group_deadline",
    "spark_eos.driver.offset_log",
    "spark_eos.driver.step_clock",
    "spark_eos.kafka.offset_metadata",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    failed, attempted = doctest.testmod(import_module(name), verbose=False)
    assert attempted
    assert not failed
