"""The examples in docstrings do what they show."""

import doctest
from importlib import import_module

import pytest

# Modules with examples that need no broker and no Spark.
MODULES = [
    "spark_eos.acls",
    "spark_eos.batch.batch_report",
    "spark_eos.batch.data_loss",
    "spark_eos.batch.plan",
    "spark_eos.batch.writer_settings",
    "spark_eos.client.checks",
    "spark_eos.client.error_codes",
    "spark_eos.client.jaas",
    "spark_eos.client.oauth",
    "spark_eos.client.pem",
    "spark_eos.client.printable",
    "spark_eos.client.sasl",
    "spark_eos.client.sasl_settings",
    "spark_eos.client.security",
    "spark_eos.client.settings",
    "spark_eos.client.tls",
    "spark_eos.driver.assigned_partitions",
    "spark_eos.driver.checkpoint_files",
    "spark_eos.driver.group_deadline",
    "spark_eos.driver.offset_log",
    "spark_eos.driver.step_clock",
    "spark_eos.errors",
    "spark_eos.kafka.cluster",
    "spark_eos.kafka.deadline",
    "spark_eos.kafka.hanging_transactions",
    "spark_eos.kafka.offset_metadata",
    "spark_eos.kafka.open_transactions",
    "spark_eos.kafka.transactional_ids",
    "spark_eos.kafka.transactions",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    failed, attempted = doctest.testmod(import_module(name), verbose=False)
    assert attempted
    assert not failed
